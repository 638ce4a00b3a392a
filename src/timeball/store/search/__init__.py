"""Pages, totals and overviews of jobs and executions."""
