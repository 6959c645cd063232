"""What a broker does about compaction: it says what is due, plans it, and commits what compactors hand back.

    due        when a replica is due, and why not (pure)
    leftovers  what the last pass had to leave, over restarts
    plans      what a compactor is told, and what it answers: as JSON, between our own processes
    service    the broker's loop, its plans under way, and the commit
    offers     what a leader has compacted, for its followers
    adoption   a follower takes that over instead of compacting it again
    patience   how long it waits for it (pure)
    rate       how fast it is copied (pure)
    requests   the private messages (API keys from 30001 on)
    bulk       those that carry bytes, for compactors elsewhere

A plan names a replica by the incarnation of its log, and exactly the closed segments that it was made for; a result
that comes when any of that has changed is refused whole (rule 10). The order is rule 7's: the high watermark that a
pass is planned at is durable before anything is removed by it; after the swap MCCO and MXFO are durable before they
are reported.
"""
