"""A broker's part in compaction: it publishes what is due, plans it, and commits compactors' results.

    lookout      whether anything may have become due since the last look
    leftovers    what the last compaction could not remove, kept over restarts
    service      the broker's loop, over the next three
    publish      which replicas are due, published for compactors
    plans        open plans, and the commit
    memory       what a broker remembers of compactions
    offers       a leader's compacted segments, for its followers
    adoption     a follower takes them over instead of compacting again
    patience     how long a follower waits for them (pure)
    uncleanable  replicas that no compaction can read (pure)
    compactors   how many compactors are alive
    requests     the private messages (API keys from 30001 on)
    bulk         the messages that carry bytes, for compactors on other machines
    answers      compaction status of the whole cluster, for operators

A plan names a replica by the incarnation of its log, and exactly the closed segments that it was made for; a result
that arrives after any of that has changed is refused whole (rule 10). The order is rule 7's: the high watermark that a
compaction is planned at is durable before anything is removed by it; after the swap, MCCO and MXFO are durable before
they are reported.
"""
