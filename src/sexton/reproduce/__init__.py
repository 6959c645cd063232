"""Four ways in which replicas that are compacted without asking each other corrupt data, shown on real clusters.

    scenarios    the scripts, each a dozen lines in the words of `script`: the four, and one that stays clean
    script       the words: start, produce, kill, wait until compacted, bring back, move leadership, read
    truth        what a reader should see, from what the script committed
    world        what a script needs of a cluster; `live` is a real one, tests bring their own
    systems      Apache Kafka in any version, Sexton `independent`, Sexton `coordinated`
    verdict      what was read, what the broker claims, what is true: the judgement
    run          scripts on a system, side by side, with one outage for all
    report       the page with its pictures (`timeline`)

The same scripts run on every system: nothing in them, nor in the words, knows which one it is.
"""
