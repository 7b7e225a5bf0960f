"""The options of mosquitto-go-auth in a mosquitto.conf (`auth_opt_...`), as keys of FlockMQ.

The plugin asks several back ends, and accepts a client that one of them accepts. Files, one database, a directory and
tokens have counterparts; an HTTP back end gets other requests here. A back end without a counterpart is a warning: its
users can't connect. A *loss* opens something: clients could do more than with the plugin.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote

from ..errors import ConfigError

PREFIXES = {
    "postgres": "pg",
    "mysql": "mysql",
    "sqlite": "sqlite",
    "files": "files",
    "jwt": "jwt",
    "http": "http",
    "ldap": "ldap",
    **{name: name for name in ("redis", "mongo", "grpc", "js", "plugin")},
}
DATABASES = ("postgres", "mysql", "sqlite")
CHECKS = ("user", "superuser", "acl")
SECRET = re.compile("password|secret|pass$")
LITERAL = re.compile(r"('(?:[^']|'')*')")
VERIFY = {"true": "full", "custom": "full", "skip-verify": "ca", "false": "none", "": "none"}  # of mysql_sslmode
# Options that change nothing here, and why.
WITHOUT_EFFECT = {
    r"(\w+_)?hasher(_\w+)?": "the format of each hash is recognized",
    r"log_\w+": "see [log]",
    r"cache\w*|(auth|acl)_(cache|jitter)_seconds": "rows and answers are remembered: auth.sql_remember and others",
    r"retry_count|\w+_connect_tries|\w+_max_life_time": "connections are opened again by themselves",
    r"mysql_allow_native_passwords": "always so",
    r"exhaust_backend_first": "a method that knows the user decides",
    r"\w+_register|disable_superuser": "taken into account",
    r"http_(response_mode|params_mode|method|user_agent|superuser_uri|aclcheck_uri)": "see ACCESS.md, HTTP back end",
}


class Lost(NamedTuple):
    """An option whose loss opens something."""

    option: str
    value: str
    reason: str


class Counterpart(NamedTuple):
    """What the options mean."""

    values: dict[str, object]  # of FlockMQ, by key
    losses: list[Lost]
    warnings: list[str]
    notes: list[str]


def is_go_auth(path: str) -> bool:
    """Whether a plugin is mosquitto-go-auth, by its file."""
    return "go-auth" in path


def shown(option: str, value: str) -> str:
    """The value of an option, for people; secrets are left out."""
    return "..." if SECRET.search(option) else value


def counterpart(options: Mapping[str, str]) -> Counterpart:
    """The keys of FlockMQ for the options of the plugin, by their names without `auth_opt_`.

    Raises:
        ConfigError: the plugin would not start with them, or a query can't be translated.
    """
    return GoAuth(options).translate()


class GoAuth:
    """The options of the plugin."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._unused = set(options)
        self._made = Counterpart({}, [], [], [])
        self._backends = [name.strip() for name in self._get("backends").split(",") if name.strip()]

    def translate(self) -> Counterpart:
        """Raises ConfigError."""
        unknown = [name for name in self._backends if name not in PREFIXES]
        if unknown or not self._backends:
            raise ConfigError(f"auth_opt_backends names {unknown[0] if unknown else 'nothing'}, so the plugin fails")
        database = next((name for name in self._backends if name in DATABASES), "")
        for name in self._backends:
            if name in DATABASES and name != database:
                self._warn_of_users(name, "a listener has one database")
            elif name in DATABASES:
                self._database(name)
            elif name in ("files", "jwt", "http", "ldap"):
                getattr(self, f"_{name}")()
            else:
                self._warn_of_users(name, "it has no counterpart")
        self._check_rules()
        self._general()
        return self._made

    def _get(self, name: str, default: str = "") -> str:
        self._unused.discard(name)
        return self._options.get(name, default).strip() or default

    def _is_true(self, name: str) -> bool:
        return self._get(name) == "true"

    def _checks(self, backend: str, check: str) -> bool:
        """Whether a back end makes this check."""
        name = f"{PREFIXES[backend]}_register"
        return check in [each.strip() for each in self._get(name, ",".join(CHECKS)).split(",")]

    def _warn_of_users(self, backend: str, why: str) -> None:
        self._made.warnings.append(f"auth_opt_backends: users of {backend} can't connect: {why}")
        self._unused -= {name for name in self._options if name.startswith(f"{PREFIXES[backend]}_")}

    def _lose(self, option: str, reason: str) -> None:
        value = shown(option, self._options.get(option, ""))
        self._made.losses.append(Lost(f"auth_opt_{option}", value, reason))

    # ---- files ----

    def _files(self) -> None:
        password, acl = self._get("files_password_path"), self._get("files_acl_path")
        if self._checks("files", "user"):
            if not password:
                raise ConfigError("auth_opt_files_password_path is missing, which the plugin refuses")
            self._made.values["auth.password_file"] = password
        if acl and self._checks("files", "acl"):
            self._made.values["auth.acl_file"] = acl

    # ---- databases ----

    def _database(self, backend: str) -> None:
        prefix, made = PREFIXES[backend], self._made
        if not self._checks(backend, "user"):
            if self._checks(backend, "acl") and self._get(f"{prefix}_aclquery"):
                self._lose(f"{prefix}_aclquery", "its rules are for users of other back ends, who would have none")
            return
        missing = [name for name in ("dbname", "user", "password") if not self._get(f"{prefix}_{name}")]
        if backend == "sqlite":
            missing = [] if self._get("sqlite_source") else ["source"]
        if missing or not self._get(f"{prefix}_userquery"):
            raise ConfigError(f"auth_opt_{prefix}_{(*missing, 'userquery')[0]} is missing, which the plugin refuses")
        made.values["auth.sql_url"] = getattr(self, f"_url_of_{backend}")()
        made.values["auth.sql_user_query"] = self._query(prefix, "userquery", 1)
        rules = self._query(prefix, "aclquery", 2) if self._checks(backend, "acl") else ""
        super_query = ""
        if self._checks(backend, "superuser") and self._get("disable_superuser") != "true":
            super_query = self._query(prefix, "superquery", 1)
        if rules and super_query:
            dual = " FROM DUAL" if backend == "mysql" else ""
            everything = (f"SELECT '{topic}'{dual} WHERE ({super_query}) > 0" for topic in ("#", "$SYS/#"))
            rules = " UNION ALL ".join((f"SELECT * FROM ({rules}) AS rules_of_user", *everything))
        if rules:
            both = f"SELECT 'readwrite', topics.* FROM ({rules}) AS topics"
            made.values["auth.sql_rules_query"] = rules if "${access}" in rules else both
        self._remember("sql")

    def _query(self, prefix: str, name: str, most: int) -> str:
        """A query with our placeholders; empty: there is none. Raises ConfigError."""
        option = f"{prefix}_{name}"
        text = self._get(option).rstrip("; ")
        user = "${client_id}" if self._is_true("use_clientid_as_username") else "${username}"
        values = (user, "${access}")[:most]
        seen = iter(values)

        def placed(found: re.Match[str]) -> str:
            try:
                return values[int(found[1]) - 1] if found[1] else next(seen)
            except (IndexError, StopIteration):
                raise ConfigError(f"auth_opt_{option}: the plugin has no value for {found[0]!r}") from None

        pattern = r"\$(\d)" if prefix == "pg" else r"\?(\d?)"
        parts = LITERAL.split(text)
        return "".join(part if at % 2 else re.sub(pattern, placed, part) for at, part in enumerate(parts))

    def _url_of_postgres(self) -> str:
        host, port = self._get("pg_host", "localhost"), self._get("pg_port", "5432")
        options = {"sslmode": self._get("pg_sslmode", "verify-full")}
        options |= {name: self._get(f"pg_{name}") for name in ("sslcert", "sslkey", "sslrootcert")}
        if host.startswith("/"):
            options, host = {"host": host, "port": port}, ""
        else:
            host = f"{host}:{port}"
        return self._url("postgresql", "pg", host, options)

    def _url_of_mysql(self) -> str:
        mode = self._get("mysql_sslmode")
        options = {"verify": VERIFY.get(mode, "none")}
        names = {"ca_file": "sslrootcert", "cert_file": "sslcert", "key_file": "sslkey"}
        files = {key: self._get(f"mysql_{name}") for key, name in names.items()}
        if mode == "custom":
            options |= files
        if mode == "skip-verify":
            self._made.warnings.append(
                "auth_opt_mysql_sslmode skip-verify: the certificate of MySQL needs a known authority here: ca_file"
            )
        host = f"{self._get('mysql_host', 'localhost')}:{self._get('mysql_port', '3306')}"
        if self._get("mysql_protocol") == "unix":
            options = {"socket": self._get("mysql_socket")}
        self._get("mysql_socket")
        return self._url("mysql", "mysql", host, options)

    def _url_of_sqlite(self) -> str:
        return f"sqlite:{self._get('sqlite_source')}"

    def _url(self, scheme: str, prefix: str, host: str, options: Mapping[str, str]) -> str:
        user, password, name = (
            quote(self._get(f"{prefix}_{option}"), safe="") for option in ("user", "password", "dbname")
        )
        given = "&".join(f"{option}={quote(value, safe='/')}" for option, value in options.items() if value)
        return f"{scheme}://{user}:{password}@{host}/{name}{f'?{given}' if given else ''}"

    def _remember(self, method: str) -> None:
        seconds = self._get("auth_cache_seconds")
        if self._is_true("cache") and seconds.isdigit():
            self._made.values[f"auth.{method}_remember"] = f"{seconds} s"

    # ---- others ----

    def _jwt(self) -> None:
        self._get("jwt_mode")
        if self._get("jwt_userfield") == "Username":
            self._made.values["auth.jwt_username_claim"] = "username"
        what = "write the secret of tokens into a file, and name it in auth.jwt_secret_file"
        if not self._get("jwt_secret"):
            what = "tokens are verified by the node: name their keys in auth.jwt_keys"
        self._made.warnings.append(f"auth_opt_backends: tokens are refused until then: {what}")
        self._unused -= {name for name in self._options if name.startswith("jwt_")}

    def _http(self) -> None:
        host, port = self._get("http_host", "localhost"), self._get("http_port")
        scheme, separator, rest = host.partition("://")
        if not separator:
            scheme, rest = ("https" if self._is_true("http_with_tls") else "http"), host
        self._get("http_with_tls")
        place = rest if ":" in rest.rpartition("]")[2] or not port else f"{rest}:{port}"
        self._made.values["auth.http_url"] = f"{scheme}://{place}/{self._get('http_getuser_uri').lstrip('/')}"
        if self._get("http_timeout").isdigit():
            self._made.values["auth.http_timeout"] = f"{self._get('http_timeout')} s"
        self._remember("http")
        self._made.warnings.append(
            "auth_opt_http_getuser_uri: requests and replies are others here, rules are part of the reply; until the "
            "back end replies so, it refuses all its users (ACCESS.md, HTTP back end)"
        )
        if self._is_true("http_verify_peer") is False and scheme == "https":
            self._made.warnings.append("auth_opt_http_verify_peer: the certificate of the back end is verified here")

    def _ldap(self) -> None:
        made, url = self._made.values, self._get("ldap_url", "ldap://localhost:389")
        user = "${client_id}" if self._is_true("use_clientid_as_username") else "${username}"
        for option in ("user_dn", "bind_dn", "bind_password", "user_filter"):
            if not self._get(f"ldap_{option}"):
                raise ConfigError(f"auth_opt_ldap_{option} is missing, which the plugin refuses")
        wanted = self._get("ldap_user_filter").replace("%s", user)
        attribute = re.search(r"\(([A-Za-z][\w-]*)=" + re.escape(user), wanted)
        made["auth.ldap_url"] = url
        made["auth.ldap_base"] = self._get("ldap_user_dn")
        made["auth.ldap_bind_dn"] = self._get("ldap_bind_dn")
        made["auth.ldap_password_file"] = "ldap-password"
        made["auth.ldap_filter"] = wanted
        if attribute:
            made["auth.ldap_username"] = attribute[1]
        self._made.warnings.append("auth_opt_ldap_bind_password: write it into the file `ldap-password` (chmod 600)")
        if url.startswith("ldap://"):
            self._made.warnings.append(
                f"auth_opt_ldap_url {url}: connections are encrypted by StartTLS here; auth.ldap_start_tls = false "
                "if the server can't"
            )
        self._remember("ldap")
        if self._get("ldap_acl_topic_pattern_attribute") and self._checks("ldap", "acl"):
            self._lose("ldap_acl_topic_pattern_attribute", "users of the directory would have no rules: see ldap_roles")
        self._unused -= {name for name in self._options if name.startswith("ldap_")}

    # ---- all ----

    def _check_rules(self) -> None:
        """Users that the plugin would let do nothing must not have all rights here."""
        values = self._made.values
        if not {"auth.password_file", "auth.sql_url", "auth.ldap_url", "auth.http_url"} & values.keys():
            self._lose("backends", "nothing would check which clients may connect: see auth.*")
        if "auth.acl_file" in values:
            return
        if len(self._backends) > 1 and "auth.password_file" in values:
            self._lose("backends", "users of the password file would have all rights: write an auth_opt_files_acl_path")
        for name in (*DATABASES, "ldap"):
            is_used = name in self._backends and self._checks(name, "user")
            if is_used and not self._checks(name, "acl"):
                self._lose(f"{PREFIXES[name]}_register", f"users of {name} would have all rights: write an acl file")

    def _general(self) -> None:
        made = self._made
        if self._is_true("check_prefix"):
            made.warnings.append("auth_opt_check_prefix: names are looked up as clients send them, with their prefix")
            self._unused -= {"prefixes", "strip_prefix"}
        if self._is_true("use_clientid_as_username") and "auth.password_file" in made.values:
            made.warnings.append("auth_opt_use_clientid_as_username: the password file has user names of clients here")
        encodings = [name for name in self._options if name.endswith("hasher_salt_encoding")]
        if any(self._get(name) == "utf-8" for name in encodings):
            made.warnings.append(f"auth_opt_{encodings[0]} utf-8: hashes need their salt in base64 (ACCESS.md)")
        for name in sorted(self._unused):
            why = next(
                (why for pattern, why in WITHOUT_EFFECT.items() if re.fullmatch(pattern, name)), "no counterpart"
            )
            made.notes.append(f"auth_opt_{name} {shown(name, self._options[name])}: {why}")
