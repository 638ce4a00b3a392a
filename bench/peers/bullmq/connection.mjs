// Where Redis is, in the words of BullMQ.

const url = new URL(process.env.REDIS_URL);

export const connection = { host: url.hostname, port: Number(url.port), db: Number(url.pathname.slice(1)) };
