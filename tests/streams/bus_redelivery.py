"""What every ``EventBus`` must do after a handler failed. ``BusContract`` inherits these tests."""

from __future__ import annotations

from streams.bus.contract import DEAD_ATTEMPTS, DEAD_DURABLE, DEAD_REASON, DEAD_SUBJECT, EventBus, Poison, Redelivery
from tests.streams.bus_handlers import AT_ONCE, Inbox


class RedeliveryContract:
    async def test_a_failed_message_comes_again_and_holds_nobody_up(self, bus: EventBus) -> None:
        inbox = Inbox(lambda d: ValueError("no") if d.body == b"bad" and d.attempt < 3 else None)
        await bus.subscribe("evt.>", inbox, durable="one", redelivery=AT_ONCE)
        for body in (b"bad", b"1", b"2"):
            await bus.publish("evt.p.one", body)
        await inbox.wait(5)
        bad = [delivery for delivery in inbox.got if delivery.body == b"bad"]
        assert [delivery.attempt for delivery in bad] == [1, 2, 3]
        assert len({delivery.sequence for delivery in bad}) == 1
        assert [body for body in inbox.bodies if body != b"bad"] == [b"1", b"2"]

    async def test_each_attempt_says_what_will_be_waited(self, bus: EventBus) -> None:
        inbox = Inbox(lambda d: ValueError("no"))
        redelivery = Redelivery(max_deliver=4, backoff_s=(0.001, 0.002))
        await bus.subscribe("evt.>", inbox, durable="one", redelivery=redelivery)
        await bus.publish("evt.p.one", b"1")
        await inbox.wait(4)
        assert [(d.attempt, d.backoff_s) for d in inbox.got] == [(1, 0.001), (2, 0.002), (3, 0.002), (4, None)]

    # Dead letters

    async def test_what_fails_to_the_last_becomes_a_dead_letter(self, bus: EventBus) -> None:
        inbox, dead = Inbox(lambda d: ValueError("the text of an error may hold a secret")), Inbox()
        await bus.subscribe("dlq.>", dead, durable="dead")
        await bus.subscribe("cmd.>", inbox, durable="worker", redelivery=AT_ONCE)
        await bus.publish("cmd.p.w.a.run", b"body", headers={"CG-Sender": "x"}, message_id="01A")
        await bus.publish("cmd.p.w.a.run", b"other")
        letters = await dead.wait(2)
        assert [d.body for d in inbox.got].count(b"body") == AT_ONCE.max_deliver
        letter = next(each for each in letters if each.body == b"body")
        assert letter.subject == "dlq.worker.cmd.p.w.a.run"
        told = {name: letter.headers[name] for name in (DEAD_SUBJECT, DEAD_DURABLE, DEAD_ATTEMPTS, DEAD_REASON)}
        assert told == {
            DEAD_SUBJECT: "cmd.p.w.a.run",
            DEAD_DURABLE: "worker",
            DEAD_ATTEMPTS: "3",
            DEAD_REASON: "ValueError",
        }
        assert letter.headers["CG-Sender"] == "x"
        assert letter.headers.get("Nats-Msg-Id") != "01A"

    async def test_poison_is_never_tried_again(self, bus: EventBus) -> None:
        inbox, dead = Inbox(lambda d: Poison("no JSON\r\nat all, ü") if d.body == b"bad" else None), Inbox()
        await bus.subscribe("dlq.>", dead, durable="dead")
        await bus.subscribe("cmd.>", inbox, durable="worker", redelivery=AT_ONCE)
        await bus.publish("cmd.p.w.a.run", b"bad")
        await bus.publish("cmd.p.w.a.run", b"good")
        (letter,) = await dead.wait(1)
        await inbox.wait(2)
        assert (letter.headers[DEAD_ATTEMPTS], letter.headers[DEAD_REASON]) == ("1", "no JSON%0D%0Aat all, %C3%BC")
        assert inbox.bodies == [b"bad", b"good"]

    async def test_a_dead_letter_does_not_die_again(self, bus: EventBus) -> None:
        inbox, dead, last = Inbox(lambda d: Poison("bad")), Inbox(lambda d: Poison("worse")), Inbox()
        await bus.subscribe("dlq.>", dead, durable="dead")
        await bus.subscribe("cmd.>", inbox, durable="worker")
        await bus.publish("cmd.p.w.a.run", b"1")
        await dead.wait(1)
        await bus.publish("cmd.p.w.a.run", b"2")
        await dead.wait(2)
        await bus.subscribe("dlq.>", last, durable="last", start="all")
        await last.wait(2)
        assert last.bodies == [b"1", b"2"]
