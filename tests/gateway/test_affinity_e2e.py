"""A conversation stays where its prefix is warm, and moves as a whole (case P23)."""

from tests.gateway.kit import MODEL, chat


async def test_turns_of_a_conversation_stay_with_their_replica(launch):
    """Affinity end to end: every next turn goes to the replica that holds the earlier ones, and the record predicts it."""
    gateway = await launch(engines=4)
    messages = []
    homes = []
    for turn in range(6):
        messages.append({"role": "user", "content": f"turn {turn}: " + "long text " * 300})
        await gateway.post({"model": MODEL, "messages": messages})
        homes.append(gateway.engines.requests[-1][0])
        messages.append({"role": "assistant", "content": "Hello world"})
    assert len(set(homes)) == 1
    assert all(record.predicted_hit_tokens > 0 for record in gateway.records[1:])


async def test_a_conversation_moves_as_a_whole_when_its_replica_is_lost(launch):
    """P23: one new home for the prefix, not a scatter."""
    gateway = await launch(engines=4)
    body = chat("a long shared beginning " * 200)
    await gateway.post(body)
    home = f"r{gateway.engines.requests[-1][0] + 1}"
    gateway.parts.fleet.drain(home)
    for _ in range(6):
        await gateway.post(body)
    moved = {index for index, _ in gateway.engines.requests[1:]}
    assert len(moved) == 1
    assert f"r{moved.pop() + 1}" != home
