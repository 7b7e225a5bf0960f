"""Users in a database of the operator's: PostgreSQL, MySQL, MariaDB or SQLite; deploy/docs/ACCESS.md has the contract.

A query returns the row of a user, with the hash of its password; the node compares the password, so the database never
gets one. The columns, in any order:

    password_hash   required; any name if it is the only column. NULL: the user has no password, and can't log in
    username        the user's name, if it is not as the client has written it: databases may compare without case
    rules           access rules: lines, JSON, or an array of lines
    roles           names of roles: separated by commas, JSON, or an array
    disabled        whether the user is refused: a truth value
    ...             claims that rules of tenants name

Any other column is refused: a misspelt `disabled` would let in a disabled user. A second query may return the rules as
rows of access and topic filter. With `${access}` in it, it returns topic filters, as queries of Mosquitto's plugins do:
it is asked for 1 (read), 2 (publish) and 4 (subscribe). A client may read the filters that both 1 and 4 return.

A row is remembered for a while. A password that does not match a remembered row is compared with the present one.
"""

from collections.abc import Awaitable
from typing import Any, NamedTuple

from ..config.placeholders import ACCESS, Template
from ..core.networks import network_of
from .authenticator import Credentials, Identity, ReasonCode, Verdict
from .back_end import AWAY, BackEnd, Remembered, log
from .connections import Lost, Refused
from .passwords import Dummies, StoredHash, parse_hash
from .rules import Rules, is_text, parse_rule, parse_rules, read_json
from .sql_database import Database, Rows, Value
from .stored_user import Away, StoredUser
from .users import DISABLED, WRONG
from .verifier import Verifier
from .work_pool import WorkPool

HASH = "password_hash"
COLUMNS = (HASH, "username", "rules", "roles", "disabled")
READ, PUBLISH, SUBSCRIBE = 1, 2, 4  # values of ${access}, Mosquitto's
ACCESS_WORDS = {READ: "read", PUBLISH: "write", 3: "readwrite", 4: "read", 5: "read", 6: "readwrite", 7: "readwrite"}
MAX_ROLES = 100  # of a user


class SqlSettings(NamedTuple):
    """The queries."""

    user_query: str
    rules_query: str = ""  # empty: rules are in the row of the user, if there are any
    remember: float = 60.0  # seconds for which a row is remembered
    claims: tuple[str, ...] = ()  # names of columns that rules of tenants name


class User(NamedTuple):
    """A user as the database has it."""

    stored: StoredHash | None  # None: it has no password
    identity: Identity
    disabled: bool


class SqlUsers:
    """Accepts users of a database.

    Args:
        database: that has them.
        settings: the queries.
        pool: threads that wait for the database.
        verifier: compares passwords.
    """

    name = "sql"

    def __init__(self, database: Database, settings: SqlSettings, pool: WorkPool, verifier: Verifier) -> None:
        self._database = database
        self._settings = settings
        self._pool = pool
        self._verifier = verifier
        self._query = Template.parse(settings.user_query)
        self._rules_query = Template.parse(settings.rules_query)
        self._names = tuple(dict.fromkeys((*self._query.names, *self._rules_query.names)))
        self._back_end = BackEnd(database.place)
        self._known: Remembered[User] = Remembered(settings.remember)
        self._dummies = Dummies()

    @property
    def dummy_hash(self) -> StoredHash | None:
        """The hash to verify for an unknown user."""
        return self._dummies.present

    def authenticate(self, credentials: Credentials) -> Verdict | Awaitable[Verdict | None] | None:
        """None: the user is unknown."""
        values = self._values_of(credentials)
        if values is None:
            return None
        user = self._known.find(values)
        if user is not None and user.stored and self._verifier.remembers(user.stored, credentials.password):
            return _admitted(user)
        return self._authenticate(credentials.password, values, user)

    async def _authenticate(
        self, password: bytes | None, values: tuple[Value, ...], user: User | None
    ) -> Verdict | None:
        """Compare with the remembered row, if there is one, and then with the present one."""
        if user is not None and user.stored and await self._verifier.matches(user.stored, password):
            return _admitted(user)
        before = user.stored if user is not None else None
        try:
            user = await self._find(values)
        except Away:
            return AWAY
        if user is None:
            return None
        if user.stored is None:
            await self._verifier.matches(self._dummies.present, password)
            return WRONG
        if user.stored != before and await self._verifier.matches(user.stored, password):
            return _admitted(user)
        return WRONG

    def _values_of(self, credentials: Credentials) -> tuple[Value, ...] | None:
        """The values of the placeholders; None: the database can't have such a user."""
        sent = {
            "username": credentials.username or "",
            "client_id": credentials.client_id,
            "address": network_of(credentials.address),
            "listener": credentials.listener,
            ACCESS: "",
        }
        values = tuple(sent[name] for name in self._names)
        if "username" in self._names and not credentials.username:
            return None
        if any("\0" in value or not is_text(value) for value in values):
            return None
        return values

    async def _find(self, values: tuple[Value, ...]) -> User | None:
        """The user in the database; None: there is none.

        Raises:
            Away: it can't be looked up for now, or its row is unusable; the log has the reason.
        """
        if not self._back_end.takes():
            raise Away
        try:
            named = dict(zip(self._names, values, strict=True))
            user = await self._pool.run(self._look_up, named, self._back_end.pauses)
        except Lost as error:
            self._back_end.failed(error)
            raise Away from None
        except (Refused, ValueError) as error:
            log.error("a user can't be read from the database", url=self._database.place, error=error)
            raise Away from None
        self._back_end.answered()
        if user is None:
            self._known.forget(values)
        else:
            self._known.keep(values, user)
        return user

    # ---- in a thread ----

    def _look_up(self, values: dict[str, Value], pauses: int) -> User | None:
        """Raises Lost, Refused, Away; ValueError: an answer is not as above."""
        if self._back_end.pauses != pauses:  # it has failed while this call waited for its thread
            raise Away
        found = self._rows(self._query, values)
        if not found.rows:
            return None
        if len(found.rows) > 1:
            raise ValueError("auth.sql_user_query returns several rows for a client: it is to be one")
        user = self._user(found, values)
        if user.stored is not None:
            self._dummies.follow(user.stored)
        if not self._settings.rules_query:
            return user
        rules = (*(user.identity.rules or ()), *self._rules(values))
        return user._replace(identity=user.identity.replace(rules=rules))

    def _rows(self, query: Template, values: dict[str, Value]) -> Rows:
        return self._database.rows(query, [values[name] for name in query.names])

    def _user(self, found: Rows, values: dict[str, Value]) -> User:
        columns, (row,) = found
        if len(columns) == 1:
            columns = (HASH,)
        unknown = [name for name in columns if name not in COLUMNS and name not in self._settings.claims]
        if HASH not in columns or unknown:
            fault = f"the column {unknown[0]!r} has no meaning" if unknown else f"there is no column {HASH!r}"
            raise ValueError(f"auth.sql_user_query: {fault}: expected {', '.join(COLUMNS)}; rename one by AS")
        if len(set(columns)) < len(columns):
            raise ValueError(f"auth.sql_user_query returns a column twice: {', '.join(columns)}")
        given = dict(zip(columns, row, strict=True))
        stored = _read(HASH, _hash, given[HASH])
        name = _read("username", _name, given["username"]) if "username" in given else self._name(values)
        claims = [(claim, _read(claim, _claim, given[claim])) for claim in self._settings.claims if claim in given]
        identity = Identity(
            name,
            rules=_read("rules", _rules_in, given.get("rules")),
            roles=_read("roles", _names_in, given.get("roles")),
            claims=tuple((claim, text) for claim, text in claims if text),
            credential=stored.fingerprint if stored is not None else b"",
        )
        return User(stored, identity, _read("disabled", _truth, given.get("disabled", False)))

    def _name(self, values: dict[str, Value]) -> str:
        """The name of a user for which the query returns none."""
        return str(values["username"] if "username" in self._query.names else values["client_id"])

    def _rules(self, values: dict[str, Value]) -> Rules:
        """The rules that the second query returns; all are patterns."""
        query = self._rules_query
        if ACCESS not in query.names:
            columns, rows = self._rows(query, values)
            if len(columns) != 2:
                raise ValueError(
                    f"auth.sql_rules_query returns {len(columns)} columns: expected access and a topic filter, "
                    "or only a topic filter with ${access} in the query"
                )
            return tuple(_rule(*row) for row in rows)
        found: dict[int, list[Any]] = {}
        for access in (READ, PUBLISH, SUBSCRIBE):
            columns, rows = self._rows(query, {**values, ACCESS: access})
            if len(columns) != 1:
                raise ValueError(f"auth.sql_rules_query with ${{access}} returns {len(columns)} columns: expected one")
            found[access] = [row[0] for row in rows]
        read = (_rule(READ, name) for name in found[READ] if name in found[SUBSCRIBE])
        return (*read, *(_rule(PUBLISH, name) for name in found[PUBLISH]))

    # ---- as a store of users ----

    async def find_user(self, username: str) -> StoredUser | None:
        """The user; None: there is none, or the query needs more of a client than its name.

        Raises:
            Away: it can't be looked up for now.
        """
        if set(self._query.names) != {"username"} or not set(self._rules_query.names) <= {"username", ACCESS}:
            return None
        values = self._values_of(Credentials("", username, None, "", 5))
        user = None if values is None else await self._find(values)  # not the remembered one: its password may be new
        if user is None or user.stored is None:
            return None
        return StoredUser(user.stored, user.identity.replace(method=self.name), user.disabled)

    def usual_rounds(self) -> int | None:
        """Unknown: the users are not here."""
        return None

    def renew(self, identity: Identity) -> Identity | None:
        """The database is asked again at the next CONNECT."""
        return identity


def _admitted(user: User) -> Verdict:
    """The verdict for a client that has the user's password."""
    return DISABLED if user.disabled else Verdict(ReasonCode.ACCEPTED, user.identity)


# ---- the values of a row ----


def _read(column: str, parse: Any, value: Any) -> Any:
    """A value of a column. Raises ValueError, which names the column."""
    try:
        return parse(value)
    except ValueError as error:
        raise ValueError(f"the column {column!r}: {error}") from None


def _text(value: Any) -> str:
    if isinstance(value, (bytes, bytearray, memoryview)):
        value = bytes(value).decode()  # a binary column
    if not isinstance(value, str) or not is_text(value):
        raise ValueError(f"expected a text, not {type(value).__name__}")
    return value


def _name(value: Any) -> str:
    name = _text(value)
    if not name or "\0" in name:
        raise ValueError("expected a name")
    return name


def _claim(value: Any) -> str:
    return "" if value is None else str(value) if isinstance(value, int) else _text(value)


def _hash(value: Any) -> StoredHash | None:
    return None if value is None else parse_hash(_text(value).strip(" "))


def _truth(value: Any) -> bool:
    if value in (0, 1, b"\0", b"\1"):
        return value not in (0, b"\0")
    raise ValueError("expected a truth value" + (": NULL may be read by COALESCE(..., FALSE)" if value is None else ""))


def _rules_in(value: Any) -> Rules | None:
    return parse_rules(_listed(value, "\n", as_json="[{"))


def _names_in(value: Any) -> tuple[str, ...]:
    names = [] if value is None else _listed(value, ",", as_json="[")
    if not isinstance(names, list) or len(names) > MAX_ROLES or not all(isinstance(name, str) for name in names):
        raise ValueError(f"expected at most {MAX_ROLES} names")
    return tuple(dict.fromkeys(names))


def _listed(value: Any, separator: str, as_json: str) -> Any:
    """A list that a column has: as an array, as JSON, or as one text."""
    if value is None or isinstance(value, (list, dict)):
        return value
    text = _text(value).strip()
    if text.startswith(tuple(as_json)):
        return read_json(text.encode())
    return [part.strip() for part in text.split(separator) if part.strip()]


def _rule(access: Any, topic_filter: Any) -> Any:
    """A rule of two columns. Raises ValueError."""
    if not isinstance(access, int):
        access = _text(access).strip().lower()
        access = int(access) if access.isascii() and access.isdigit() and len(access) == 1 else access
    words = {"publish": "write", "subscribe": "read", "all": "readwrite"}
    word = ACCESS_WORDS.get(access, "") if isinstance(access, int) else words.get(access, access)
    if word not in ("read", "write", "readwrite", "deny"):
        raise ValueError(f"auth.sql_rules_query: the access {access!r} is none of read, write, readwrite and deny")
    return parse_rule(f"pattern {word} {_text(topic_filter)}")
