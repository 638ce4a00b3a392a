// The marks of marks.py, written by Node.js: 24 bytes (number, instant, start), one system call each.

import { openSync, writeSync } from "node:fs";

// A long job marks its end; its start is marked under a number of its own.
export const STARTED = 1_000_000_000;

let descriptor = -1;
const bytes = Buffer.alloc(24);

/** Note that job `number` runs; `instant` (milliseconds since 1970) is the one its schedule named, if it says so. */
export function mark(number, instant = 0) {
  bytes.writeBigInt64LE(BigInt(number), 0);
  bytes.writeBigInt64LE(BigInt(Math.round(instant * 1000)), 8);
  bytes.writeBigInt64LE(process.hrtime.bigint(), 16); // CLOCK_MONOTONIC, as in marks.py
  if (descriptor < 0) descriptor = openSync(process.env.PEER_MARKS, "a");
  writeSync(descriptor, bytes);
}

/** A job that takes its time: marked at its start and at its end. */
export async function markSlowly(number, seconds) {
  mark(STARTED + number);
  await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  mark(number);
}
