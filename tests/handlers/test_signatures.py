"""Signatures by Standard Webhooks, compared with the specification and with its public library."""

from __future__ import annotations

from base64 import b64decode, b64encode
from datetime import UTC, datetime

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from timeball.handlers.signatures import new_signing_secret, parse_signing_secret, signed_headers


def test_the_signature_is_the_one_of_the_specification():
    key = b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")

    headers = signed_headers(
        [key],
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        datetime.fromtimestamp(1614265330, UTC),
        b'{"test": 2432232314}',
    )

    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_a_receiver_that_knows_either_secret_accepts_a_message_and_no_other_secret_does():
    old, new, other = (new_signing_secret() for _ in range(3))
    body = b'{"type":"execution.dead"}'

    headers = signed_headers([parse_signing_secret(new), parse_signing_secret(old)], "evt_1", datetime.now(UTC), body)

    for secret in (old, new):
        assert Webhook(secret).verify(body, headers) == {"type": "execution.dead"}
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(body + b" ", headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(other).verify(body, headers)


def test_no_two_new_secrets_are_the_same():
    assert len({new_signing_secret() for _ in range(100)}) == 100


@pytest.mark.parametrize(
    "text",
    [
        "",
        "whsec_",
        "whsec_hunter2",
        "whsec_" + b64encode(bytes(23)).decode(),
        "whsec_" + b64encode(bytes(65)).decode(),
        b64encode(bytes(32)).decode(),
        "whsec_ÄÖÜ" + b64encode(bytes(32)).decode(),
    ],
)
def test_what_is_no_secret_is_refused_without_repeating_it(text):
    with pytest.raises(ValueError, match="expected whsec_ and 24 to 64 bytes as base64") as caught:
        parse_signing_secret(text)

    assert not text or text == "whsec_" or text not in str(caught.value)
