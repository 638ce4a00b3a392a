// The program Graphile Worker runs.

import { run } from "graphile-worker";
import { mark, markSlowly } from "./marks.mjs";

const preset = { worker: { connectionString: process.env.DATABASE_URL, ...JSON.parse(process.env.PRESET ?? "{}") } };
const taskList = {
  noop: ({ number }) => mark(number),
  slow: ({ number, seconds }) => markSlowly(number, seconds),
};
const runner = await run({ preset, taskList });
await runner.promise;
