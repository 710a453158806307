"""Real requests from recorded ones: `warmlane replay` sends a trace to a URL, `warmlane calibrate` measures a replica.

`trace_text` makes text of a recording, `target` says where it goes, `exchange` sends one request and notes when what
came, `player` sends many at their times; `report` and `comparison` tell what came of it. `probe` and `ledger_steps`
gather what steps took, `step_fit` makes the simulator's numbers of it.
"""
