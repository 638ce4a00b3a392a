-- What went wrong with a node that lives on, and when: its event loop stood still, or its process was started in place of one that died.
ALTER TABLE timeball.node
    ADD COLUMN trouble text,
    ADD COLUMN trouble_at timestamptz;
