"""What is wrong with a whole request? A status and a text; the application turns it into an answer in one place."""


class BodyFault(Exception):
    """The request cannot be taken as a whole; sending the same bytes again will not help, except after a 408.

    Args:
        status: HTTP status, 4xx.
        reason: The value, the limit and what to do, for who reads the phone's log.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason
