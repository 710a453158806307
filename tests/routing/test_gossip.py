"""Gateways that tell each other: where prompts went, what is under way, what was learned; and that nothing stays."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_affinity.gossip_notes import Header, Load, Message
from cache_affinity.gossip_wire import MAX_MESSAGE_BYTES, VERSION, decode
from engines.contract import Capabilities
from policies.lane import Lane
from routing.gossip_hearing import MAX_GATEWAYS, MAX_LOADS, SILENT_S
from routing.gossip_telling import GossipBounds
from tests.routing.fleet import spec
from tests.routing.gossipers import Gateway, in_order

WORDS = "alpha beta gamma delta " * 40  # about 900 bytes


def gateways(num, **options):
    """So many, numbered from 1."""
    return [Gateway(number, **options) for number in range(1, num + 1)]


def test_a_prompt_that_went_somewhere_is_known_everywhere():
    """The next turn goes where another gateway sent the first."""
    one, other = gateways(2)
    lease, decision = one.ask(WORDS, "first", read=True)
    lease.end()
    in_order(one, other)
    found = other.route(WORDS, "first", "second")
    assert found.chosen == decision.chosen
    assert found.hit_tokens > 200
    assert other.route("something else", "entirely").hit_tokens == 0


def test_a_tenant_finds_nothing_of_another_tenants_prompt():
    """Borders start from the tenant's salt, here as there."""
    one, other = gateways(2)
    one.ask(WORDS, "first")
    in_order(one, other)
    assert other.route(WORDS, "first", salt="birch").hit_tokens == 0


def test_what_others_have_under_way_is_felt_and_given_back():
    """Rows and tokens not read, until they are read and over."""
    one, other = gateways(2)
    lease, decision = one.ask(WORDS * 10)
    in_order(one, other)
    felt = other.load_of(decision.chosen)
    assert felt == one.load_of(decision.chosen)
    assert felt[:2] == (1, lease.uncached_tokens)
    assert other.pool.get(decision.chosen).own_tokens == 0
    assert other.pool.get(decision.chosen).num_in_flight == 0, "seats are leased elsewhere"
    lease.prefilled()
    in_order(one, other)
    assert other.load_of(decision.chosen)[:2] == (1, 0)
    lease.end()
    in_order(one, other)
    assert other.load_of(decision.chosen) == (0,) * 6


def test_a_cold_prompt_avoids_the_replica_that_others_have_filled():
    """The score feels others' prompts as its own."""
    one, other = gateways(2)
    leases = [one.ask(f"{WORDS} {number}" * 20) for number in range(2)]
    busy = {decision.chosen for _, decision in leases}
    in_order(one, other)
    assert len(busy) == 2
    for number in range(6):
        assert other.route(f"cold {number}" * 300).chosen not in busy


def test_hidden_bulk_of_others_is_not_felt_by_people():
    """As with one's own: an engine that leaves bulk out of people's steps is free for them."""
    one, other = gateways(2, num_replicas=1, capabilities=Capabilities(leaves_bulk_out=True), bulk_seats=16)
    bulk = one.dispatch(WORDS * 8, read=False, lane=Lane.BULK)
    people = one.dispatch("x" + WORDS * 2, read=False)
    in_order(one, other)
    assert other.load_of("r1") == one.load_of("r1")
    assert other.pool.get("r1").hidden_tokens == bulk.uncached_tokens
    bulk.end()
    people.end()
    in_order(one, other)
    assert other.load_of("r1") == (0,) * 6


@pytest.mark.parametrize("way", ["leaves", "dies"])
def test_a_gateway_that_is_gone_leaves_nothing_behind(way):
    """Said at once, or noticed once it was silent for its lease."""
    one, other = gateways(2)
    for number in range(5):
        one.ask(f"{WORDS} {number}")
    in_order(one, other)
    assert sum(replica.num_flying for replica in other.pool) == 5
    if way == "leaves":
        other.hear(one.telling.farewell())
    else:
        other.pass_time(SILENT_S - 0.1)
        assert other.hearing.num_others == 1
        other.pass_time(0.2)
    assert other.hearing.num_others == 0
    assert all(other.load_of(replica.name) == (0,) * 6 for replica in other.pool)


def test_a_gateway_with_long_requests_is_not_taken_for_dead():
    """All loads are told again and again, be nothing new to say."""
    one, other = gateways(2)
    one.ask(WORDS)
    for _ in range(200):
        content = one.tell()
        other.pass_time(0.02)
        if content is not None:
            other.hear(content)
    assert other.hearing.num_others == 1
    assert sum(replica.num_flying for replica in other.pool) == 1


def test_a_lost_message_is_made_up_for_by_the_next_of_all_loads():
    """Loads are absolute, so nothing lost stays wrong."""
    one, other = gateways(2)
    lease, decision = one.ask(WORDS)
    other.hear(one.tell())
    lease.end()
    assert one.tell() is not None  # lost
    assert other.load_of(decision.chosen)[0] == 1
    one.pass_time(0.5)
    other.hear(one.tell())
    assert other.load_of(decision.chosen) == (0,) * 6


def test_an_overtaken_load_does_not_undo_a_newer_one():
    """The prompt in it is still news."""
    one, other = gateways(2)
    other.hear(one.tell())
    lease, decision = one.ask(WORDS, "first")
    first = one.tell()
    lease.end()
    second = one.tell()
    other.hear(second, first, first)
    assert other.load_of(decision.chosen) == (0,) * 6
    assert other.route(WORDS, "first", "more").chosen == decision.chosen
    assert other.hearing.counts == {"heard": 3, "late": 1, "lost": 0}


def test_a_restarted_replica_has_nothing_that_was_told_of_its_life_before():
    """No stale hit after its generation changed, whoever heard of the restart first; its load is another one's."""
    one, other = gateways(2, num_replicas=1)
    one.ask(WORDS, "first")
    old = one.tell()
    for gateway in (one, other):
        gateway.pool.upsert(spec("r1", generation=1), gateway.now)
        gateway.pool.move("r1", gateway.pool.get("r1").state.READY)
        gateway.hearing.rebind()
    other.hear(old)
    assert other.route(WORDS, "first").hit_tokens == 0
    assert other.load_of("r1") == (0,) * 6
    in_order(one, other)
    assert other.load_of("r1")[0] == 1, "the request goes on until it ends, and its new name is told"


def test_load_at_a_replica_that_goes_and_comes_is_counted_when_it_is_there():
    """Taken off with the one, put on the other; nothing is left on either."""
    one, other = gateways(2, num_replicas=1)
    lease, _ = one.ask(WORDS)
    in_order(one, other)
    gone = other.pool.get("r1")
    other.pool.remove("r1")
    other.hearing.rebind()
    assert (gone.num_flying, gone.outstanding_tokens, gone.work_tokens) == (0, 0, 0)
    other.add("r1")
    other.hearing.rebind()
    assert other.load_of("r1") == one.load_of("r1")
    lease.end()
    one.pass_time(0.5)
    in_order(one, other)
    assert other.load_of("r1") == (0,) * 6


def test_an_answer_teaches_everybody_once():
    """What one gateway saw counts as seen by all, so eight learn as fast as one."""
    one, other, third = gateways(3)
    for number in range(12):
        lease, decision = one.ask(f"{WORDS * 2} {number}")
        one.settle(lease, decision, cached=number, ttft_s=0.2 + number / 50)
        content = one.tell()
        other.hear(content, content)
        third.hear(content)
    for gateway in (other, third):
        for name, found in gateway.learned().items():
            assert found == pytest.approx(one.learned()[name], rel=1e-5)
    assert any(found[3] for found in other.learned().values())


def test_a_gateway_that_comes_late_is_told_what_was_learned():
    """All of it within one round."""
    one = Gateway(1)
    for number in range(12):
        one.settle(*one.ask(f"{WORDS * 3} {number}"), cached=5, ttft_s=0.3)
    one.tell()
    late = Gateway(2)
    one.pass_time(2.0)
    late.hear(one.tell())
    for name, found in late.learned().items():
        assert found == pytest.approx(one.learned()[name], rel=1e-6)


def test_what_nobody_added_to_for_long_replaces_nothing_that_is_known():
    """A gateway that was away for an hour does not bring back what was true then."""
    one, other = gateways(2, num_replicas=1)
    for number in range(30):
        one.settle(*one.ask(f"{WORDS * 3} {number}"), ttft_s=5.0)
    other.settle(*other.ask(f"{WORDS * 3} mine"), ttft_s=0.2)
    before = other.learned()["r1"][0]
    one.telling._settled.clear()
    one.pass_time(3600)
    other.hear(one.tell())
    assert other.learned()["r1"][0] == before
    assert other.learned()["r1"][5] == pytest.approx(one.learned()["r1"][5]), "nothing was known of that"


def test_strangers_garbage_and_ourselves_are_not_taken_in():
    """Each is counted by its word; one's own messages come back and are nothing."""
    one, other = gateways(2)
    lease, decision = one.ask(WORDS)
    content = one.tell()
    one.hear(content)
    assert sum(one.hearing.counts.values()) == 0
    other.hearing.installation = 7
    other.hear(content, b"", b"\x01abc", bytes([VERSION + 1]) + content[1:])
    assert other.hearing.counts == {"stranger": 1, "malformed": 2, "version": 1, "lost": 0}
    assert other.load_of(decision.chosen) == (0,) * 6
    lease.end()


def test_replicas_that_are_not_known_here_matter_to_nobody():
    """Another gateway's configuration may have more."""
    one, other = Gateway(1, 3), Gateway(2, 1)
    for number in range(6):
        one.settle(*one.ask(f"{WORDS * 2} {number}"))
        one.ask(f"open {WORDS} {number}")
    in_order(one, other)
    assert other.load_of("r1") == one.load_of("r1")


def test_the_same_address_on_another_machine_is_another_engine():
    """A loopback address says nothing elsewhere."""
    one, other = gateways(2, num_replicas=1, url="http://127.0.0.1:8000")
    assert one.telling._digests.of(spec("r1", url="http://127.0.0.1:8000")) == other.telling._digests.of(
        spec("r1", url="http://127.0.0.1:8000")
    )
    other.telling._digests._machine = "there"
    assert one.telling._digests.of(spec("r9", url="http://[::1]:1")) != other.telling._digests.of(
        spec("r9", url="http://[::1]:1")
    )


def test_a_gateway_alone_tells_nothing():
    """And keeps nothing for later."""
    one = Gateway(1)
    one.telling.num_gateways = 1
    one.settle(*one.ask(WORDS))
    assert one.tell() is None
    assert not one.telling.has_more


def test_messages_and_bytes_a_second_are_bounded_and_the_oldest_prompts_give_way():
    """A flood of prompts is told as far as there is room; load is told all the same."""
    bounds = GossipBounds(bytes_per_s=8_000, least_bytes_per_s=2_000, queue=50)
    one, other = gateways(2, num_replicas=1, seats=10_000, bounds=bounds)
    num_bytes = num_messages = 0
    start = one.now
    while one.now < start + 10:
        for number in range(4):
            one.ask(f"{one.now} {number} {WORDS * 4}", read=True)
        content = one.telling.message(one.now)
        one.now += 0.004
        if content is not None:
            num_messages += 1
            num_bytes += len(content)
            assert len(content) <= MAX_MESSAGE_BYTES
            other.hear(content)
    assert num_bytes <= 10 * 4_000 + MAX_MESSAGE_BYTES
    assert num_messages <= 10 / 0.02 + 1
    assert one.telling.counts.num_dropped > 1000
    assert (num_bytes, num_messages) == (one.telling.counts.num_bytes, one.telling.counts.num_messages)
    assert other.load_of("r1")[0] >= 0.9 * one.load_of("r1")[0], "about half a second old at most"


def test_more_loads_than_a_message_holds_are_told_bit_by_bit():
    """And told anew, so that a message that was lost leaves nothing wrong for ever, also where a load has ended."""
    bounds = GossipBounds(bytes_per_s=200_000, least_bytes_per_s=100_000, loads_s=0.1)
    one, other = gateways(2, num_replicas=150, bounds=bounds)
    leases = [one.ask(f"{number} {WORDS}" * 3, read=True)[0] for number in range(400)]
    assert sum(replica.num_flying > 0 for replica in one.pool) > 120

    def tell(is_heard):
        for _ in range(60):
            content = one.tell()
            other.pass_time(0.02)
            if content is not None and is_heard:
                other.hear(content)

    def is_known():
        return all(other.load_of(replica.name) == one.load_of(replica.name) for replica in one.pool)

    tell(is_heard=True)
    assert is_known()
    for lease in leases[::2]:
        lease.end()
    tell(is_heard=False)
    other.hear(one.tell() or one.tell())
    tell(is_heard=True)
    assert is_known()


def test_a_long_prompt_does_not_wait_for_ever_behind_short_messages():
    """It is told though there is never room for it beside the rest."""
    bounds = GossipBounds(bytes_per_s=100_000, least_bytes_per_s=50_000)
    one, other = gateways(2, bounds=bounds)
    one.ask("x" * 900_000)
    told = []
    for number in range(100):
        one.settle(*one.ask(f"short {number}"))
        if (content := one.tell()) is not None:
            assert len(content) <= MAX_MESSAGE_BYTES
            other.hear(content)
            told += [len(placement.hashes) for placement in decode(content).placements]
    assert max(told) > 800
    assert len(told) > 50


def test_gateways_and_their_loads_are_bounded():
    """Whatever is published, memory is not."""
    one = Gateway(1)
    for number in range(2, MAX_GATEWAYS + 12):
        one.hear(Message(Header(0, number, 1), loads=(Load(number, 1, 0, 0, 0, 0),)))
    assert one.hearing.num_others == MAX_GATEWAYS
    for start in range(0, MAX_LOADS + 1000, 500):
        loads = tuple(Load(start + number, 1, 0, 0, 5, 0) for number in range(500))
        one.hear(Message(Header(0, 9999, start + 1), loads=loads))
    assert len(one.hearing._others[9999].loads) == MAX_LOADS


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_whatever_the_network_does_gateways_come_to_the_same(data):
    """Messages that are lost, repeated and overtaken: a last one of each, heard by all, makes all agree on everything."""
    all_of_them = gateways(3, num_replicas=2, bounds=GossipBounds(loads_s=0.1, estimates_s=0.2))
    in_flight = []  # (sender, message)
    for step in range(data.draw(st.integers(1, 25))):
        one = data.draw(st.sampled_from(all_of_them))
        match data.draw(st.sampled_from(["ask", "settle", "end", "tell", "hear", "lose"])):
            case "ask":
                one.open.append(one.ask(f"{WORDS * 2} {step % 4}", str(step)))
            case "settle" if one.open:
                one.settle(*one.open.pop(), cached=step * 20, ttft_s=0.1 + step / 30)
            case "end" if one.open:
                one.open.pop()[0].end()
            case "tell" if (content := one.tell()) is not None:
                in_flight.append((one, content))
            case "hear" if in_flight:
                sender, content = data.draw(st.sampled_from(in_flight))
                if one is not sender:
                    one.hear(content)
            case "lose" if in_flight:
                in_flight.pop()
    for gateway in all_of_them:  # what waits to be told is told to nobody
        while gateway.telling.has_more:
            gateway.tell()
    for _ in range(2):  # what was taken over from others is told on
        for gateway in all_of_them:
            gateway.pass_time(0.2)
            content = gateway.tell()
            for other in all_of_them:
                other.now = max(other.now, gateway.now)
                if other is not gateway:
                    other.hear(content)
    for replica in all_of_them[0].pool:
        assert len({gateway.load_of(replica.name) for gateway in all_of_them}) == 1
        assert all_of_them[0].load_of(replica.name)[0] == sum(
            gateway.pool.get(replica.name).num_in_flight for gateway in all_of_them
        )
    first = all_of_them[0].learned()
    for gateway in all_of_them[1:]:
        for name, found in gateway.learned().items():
            assert found == pytest.approx(first[name], rel=1e-5)
    for gateway in all_of_them:
        for lease, _ in gateway.open:
            lease.end()
        for other in all_of_them:
            other.hear(gateway.telling.farewell())
    assert all(gateway.load_of(one.name) == (0,) * 6 for gateway in all_of_them for one in gateway.pool)
