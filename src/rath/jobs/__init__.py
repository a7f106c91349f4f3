"""Jobs: a workflow over many sessions, on one machine or many."""
