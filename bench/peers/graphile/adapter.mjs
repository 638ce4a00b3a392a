// How jobs come into Graphile Worker.

import { makeWorkerUtils } from "graphile-worker";
import { serve } from "./driver.mjs";

const BATCH = 1000;
let utils;

async function addAll(jobs) {
  for (let start = 0; start < jobs.length; start += BATCH) await utils.addJobs(jobs.slice(start, start + BATCH));
}

serve({
  async prepare() {
    utils = await makeWorkerUtils({ connectionString: process.env.DATABASE_URL });
    await utils.migrate();
  },
  enqueue: (number) => utils.addJob("noop", { number }),
  enqueueMany: (numbers) => addAll(numbers.map((number) => ({ identifier: "noop", payload: { number } }))),
  enqueueAt: (numbers, instants) =>
    addAll(
      numbers.map((number, index) => ({ identifier: "noop", payload: { number }, runAt: new Date(instants[index]) })),
    ),
  enqueueSlow: (numbers, seconds) =>
    addAll(numbers.map((number) => ({ identifier: "slow", payload: { number, seconds } }))),
  close: () => utils.release(),
});
