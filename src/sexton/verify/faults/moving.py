"""Leaders and replicas that move, by requests that any administrator may send: works on any Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sexton.client.admin import Admin
from sexton.client.client import Client
from sexton.errors import SextonError
from sexton.harness import asking
from sexton.verify import probes
from sexton.verify.clients.base import Place
from sexton.verify.faults.base import Scene


def lead(scene: Scene, node_id: int, timeout_s: float) -> None:
    """Makes it the leader of all logs of which it has a replica: the same replicas, with it as the preferred one."""
    scene.wait_until(f"broker {node_id} leads", lambda: _is_leading(scene, node_id), timeout_s)


def _is_leading(scene: Scene, node_id: int) -> bool:
    """Asks for it if it is not so."""
    try:
        partitions = probes.partitions(scene.bootstrap, scene.topics())
        others = {
            place: each.replicas
            for place, each in partitions.items()
            if node_id in each.replicas and each.leader != node_id
        }
        if others:
            prefer(
                scene.bootstrap,
                {place: [node_id, *(each for each in ids if each != node_id)] for place, ids in others.items()},
            )
        return not others
    except SextonError:
        return False


def prefer(bootstrap: str, replicas: Mapping[Place, Sequence[int]]) -> None:
    """Gives logs these replicas, and asks the first of each to lead, which it does if it is in sync."""

    async def question(client: Client) -> None:
        admin = Admin(client)
        await admin.reassign(dict(replicas))
        await admin.elect_leaders(list(replicas))

    asking.ask(bootstrap, question)
