"""What is known of a request when it is about to be sent for the first time, as the ledger wants it."""

from gateway.ledger_lines import Intent
from gateway.story import Story
from routing.decision import RouteDecision


def intent_of(story: Story, decision: RouteDecision) -> Intent:
    """The intent of an authenticated request that has its first turn."""
    principal, lane = story.principal, story.lane
    assert principal is not None, "only authenticated requests are sent"
    assert lane is not None, "only classified requests are sent"
    return Intent(
        story.request_id,
        story.started_at,
        principal.tenant.organization_id,
        principal.tenant.project_id,
        principal.key_id,
        story.model,
        lane.value,
        story.surface,
        story.reserved_tokens or 0,
        story.reserved_nanousd,
        decision.hit_tokens,
    )
