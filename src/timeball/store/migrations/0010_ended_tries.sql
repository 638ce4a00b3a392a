-- The tries of the last hour that did not succeed: a list for people, behind the number that counts them.
-- They are written in the order in which they end, so that a summary of each few pages is enough.
CREATE INDEX attempt_by_end ON timeball.attempt USING brin (finished_at) WITH (pages_per_range = 16, autosummarize = on);
