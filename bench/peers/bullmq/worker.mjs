// The program BullMQ runs.

import { Worker } from "bullmq";
import { connection } from "./connection.mjs";
import { mark, markSlowly } from "./marks.mjs";

const work = {
  noop: ({ data }) => mark(data.number),
  slow: ({ data }) => markSlowly(data.number, data.seconds),
  // The id of a scheduled job ends with its instant.
  tick: ({ data, id }) => mark(data.number, Number(id.split(":").at(-1))),
};

const options = JSON.parse(process.env.WORKER_OPTIONS ?? "{}");
const worker = new Worker("jobs", async (job) => work[job.name](job), {
  connection: { ...connection, maxRetriesPerRequest: null },
  removeOnComplete: { count: 0 },
  ...options,
});
worker.on("error", console.error);
worker.on("failed", (_, error) => console.error(error));
process.on("SIGTERM", async () => {
  await worker.close();
  process.exit(0);
});
