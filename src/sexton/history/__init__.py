"""What a history is: what clients asked a cluster for, and what came of it. Nothing here knows a cluster or a judge.

`op` says what an operation is, and `order` what must hold between operations. A history is written as JSON Lines
(`lines`) while its run goes on, with what the run was beside it (`run`: `test.json`); Jepsen's are imported from EDN
(`edn`). Both have a plain reader, one operation after the other. `flat` is a history as arrays, and as Parquet;
`flatten` gets there from bytes, with `kernels`; `load` from whatever a person names.

The directory of a run has `test.json`, `history.jsonl`, and `ops.parquet/`, `mops.parquet/`, `spans.parquet/`,
`names.parquet/`, made from it when the run has ended.
"""
