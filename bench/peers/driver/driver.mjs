// The client of a peer that lives in Node.js: the same wishes and answers as driver.py.

import { createInterface } from "node:readline";

const range = (first, count) => Array.from({ length: count }, (_, index) => first + index);
const seconds = (begun) => (performance.now() - begun) / 1000;
const pause = (length) => new Promise((resolve) => setTimeout(resolve, length * 1000));

/** An adapter has prepare, enqueue, enqueueMany, enqueueAt, enqueueSlow, close, and schedule if the peer has schedules. */
function verbsOf(adapter) {
  return {
    async enqueue({ first, count }) {
      const begun = performance.now();
      for (const number of range(first, count)) await adapter.enqueue(number);
      return seconds(begun);
    },
    async enqueue_many({ first, count }) {
      const begun = performance.now();
      await adapter.enqueueMany(range(first, count));
      return seconds(begun);
    },
    async enqueue_at({ first, count, at, rate }) {
      const begun = performance.now();
      const instants = range(0, count).map((index) => (at + index / rate) * 1000);
      await adapter.enqueueAt(range(first, count), instants);
      return seconds(begun);
    },
    async enqueue_slow({ first, count, seconds }) {
      await adapter.enqueueSlow(range(first, count), seconds);
      return null;
    },
    async schedule({ count }) {
      if (adapter.schedule) await adapter.schedule(range(0, count));
      return null;
    },
    async trickle({ first, count, pause: length }) {
      const moments = [];
      for (const number of range(first, count)) {
        const called = Number(process.hrtime.bigint());
        await adapter.enqueue(number);
        moments.push([called, Number(process.hrtime.bigint())]);
        await pause(length);
      }
      return moments;
    },
  };
}

/** Answer until the input ends. */
export async function serve(adapter) {
  const verbs = verbsOf(adapter);
  const answer = (value) => process.stdout.write(JSON.stringify(value) + "\n");
  await adapter.prepare();
  answer(null);
  for await (const line of createInterface({ input: process.stdin })) {
    const [verb, wish] = JSON.parse(line);
    answer(await verbs[verb](wish));
  }
  await adapter.close();
}
