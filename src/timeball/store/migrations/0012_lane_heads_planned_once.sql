-- Its plan is always the same: making it anew at every claim took longer than the claim.
ALTER FUNCTION timeball.lane_heads(text[], smallint[], timestamptz[], timestamptz, text[], integer) SET plan_cache_mode = force_generic_plan;
