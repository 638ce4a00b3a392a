// How jobs come into BullMQ.

import { Queue } from "bullmq";
import { connection } from "./connection.mjs";
import { serve } from "./driver.mjs";

const BATCH = 1000;
let queue;

async function addAll(jobs) {
  for (let start = 0; start < jobs.length; start += BATCH) await queue.addBulk(jobs.slice(start, start + BATCH));
}

serve({
  async prepare() {
    queue = new Queue("jobs", { connection });
    await queue.waitUntilReady();
  },
  enqueue: (number) => queue.add("noop", { number }),
  enqueueMany: (numbers) => addAll(numbers.map((number) => ({ name: "noop", data: { number } }))),
  enqueueAt: (numbers, instants) =>
    addAll(
      numbers.map((number, index) => ({
        name: "noop",
        data: { number },
        opts: { delay: Math.max(Math.round(instants[index] - Date.now()), 0) },
      })),
    ),
  enqueueSlow: (numbers, seconds) => addAll(numbers.map((number) => ({ name: "slow", data: { number, seconds } }))),
  async schedule(numbers) {
    for (const number of numbers) {
      await queue.upsertJobScheduler(`tick-${number}`, { every: 1000 }, { name: "tick", data: { number } });
    }
  },
  close: () => queue.close(),
});
