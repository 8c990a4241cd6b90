"""How long a server asks to be left alone."""

import datetime
import email.utils
import re


def retry_after(value: str) -> float | None:
    """Seconds from a Retry-After header: a number or an HTTP date (RFC 9110, 10.2.3); None if it is neither."""
    if re.fullmatch(r"\s*[0-9]+\s*", value):
        return float(value)
    try:
        when = email.utils.parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    # A date without a zone is meant in UTC.
    when = when if when.tzinfo else when.replace(tzinfo=datetime.timezone.utc)
    return max(0.0, (when - datetime.datetime.now(datetime.timezone.utc)).total_seconds())
