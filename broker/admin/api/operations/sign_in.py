"""The requests by which the page signs in and out, as the API describes them; broker/admin/login.py handles them."""

from http import HTTPStatus

from ..operation import Operation
from ..schema import boolean, record, text
from .operators import MAX_PASSWORD

NAME_AND_PASSWORD = record({"name": text(maxLength=64), "password": text(maxLength=MAX_PASSWORD)})
OPERATIONS = (
    Operation(
        "GET",
        "/login",
        "login_ways",
        "The ways to sign in.",
        None,
        record(
            {
                "password": boolean("whether operators have names and passwords"),
                "oidc": boolean("whether operators sign in at an identity provider, from /login/oidc"),
            }
        ),
        role="",
    ),
    Operation(
        "POST",
        "/login",
        "login",
        "Sign in. The reply sets the cookie of the login.",
        None,
        role="",
        body=NAME_AND_PASSWORD,
        problems=(HTTPStatus.TOO_MANY_REQUESTS,),
    ),
    Operation("POST", "/logout", "logout", "Sign out: end the login of the cookie.", None, role=""),
)
