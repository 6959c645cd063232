"""A leader without followers: nobody's report has it look at its watermarks again."""

from __future__ import annotations

from tests.simulated import TOPIC, Story


def test_mtro_follows_the_log_start_of_a_leader_that_is_alone() -> None:
    story = Story(1)

    async def tell() -> None:
        await story.start()
        await story.create_topic([1], {"cleanup.policy": "compact,delete"})
        await story.write(*[(b"k", b"v")] * 5)
        await story.client_does(story.admin.delete_records({(TOPIC, 0): 3}))
        replica = story.replica(1)
        assert replica.coordination.watermarks.compacted == (3, 3)
        await story.until(lambda: replica.coordination.watermarks.removable == (3, 3))

    story.run(tell())
