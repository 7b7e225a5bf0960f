"""The section [auth]: the users of clients, in files, tokens, the store, databases, directories and HTTP back ends."""

from dataclasses import dataclass

from .kinds import Boolean, Duration, FilePath, Name, Text, Texts
from .ldap_roles import LdapRole, LdapRoles
from .option import DAY, option
from .placeholders import GroupFilter, LdapFilter, RulesQuery, SqlQuery
from .sql_url import SqlUrlKind


@dataclass(frozen=True)
class AuthConfig:
    """Authentication and access rules. Without any of these, all clients of this machine have access, and no others can
    connect."""

    methods: tuple[str, ...] = option(
        ("password", "SCRAM-SHA-256", "OAUTHBEARER"),
        "Ways to present credentials: password = in CONNECT (tokens too); the others are authentication methods of "
        "MQTT 5.0. Methods of hooks are always accepted.",
        Texts("password|SCRAM-SHA-256|OAUTHBEARER", "of password, SCRAM-SHA-256 and OAUTHBEARER"),
        reloadable=True,
    )
    allow_anonymous: bool = option(
        False,
        "Accept clients without credentials. Otherwise a listener that other machines can reach needs one of the "
        "authentication methods below.",
        Boolean(),
        reloadable=True,
    )
    password_file: str = option(
        "",
        "File of users and password hashes: `flockmq passwd FILE USER` writes it; Mosquitto's files work, too.",
        FilePath(),
        reloadable=True,
        flag="--password-file",
    )
    acl_file: str = option(
        "",
        "File of access rules, in Mosquitto's format; access that no rule allows is denied.",
        FilePath(),
        reloadable=True,
        flag="--acl-file",
    )
    jwt_secret_file: str = option(
        "", "File of the secret that signs tokens (JWT, HS256) given as passwords.", FilePath(), reloadable=True
    )
    jwt_keys: str = option(
        "",
        "Public keys that verify tokens (JWT) given as passwords: a PEM file, a JWKS file, or its https URL.",
        FilePath(),
        reloadable=True,
    )
    jwt_audience: str = option(
        "", "Required `aud` of tokens; empty = tokens with an `aud` are refused.", Text(), reloadable=True
    )
    jwt_issuer: str = option("", "Required `iss` of tokens; empty = any.", Text(), reloadable=True)
    jwt_username_claim: str = option("sub", "The claim of a token that names the user.", Text(), reloadable=True)
    close_on_password_change: bool = option(
        True,
        "When a password changes in the file or in the store, close the connections that were opened with the one "
        "before. Otherwise they last until their clients reconnect.",
        Boolean(),
        reloadable=True,
    )
    users: bool = option(
        False,
        "Accept the users of the store, which are changed while nodes run: `flockmq users`, or the page.",
        Boolean(),
        reloadable=True,
    )
    sql_url: str = option(
        "",
        "Database with users: postgresql://USER@HOST/DATABASE, mysql://USER@HOST/DATABASE (MariaDB too) or "
        "sqlite:PATH. Beyond this machine TLS with a verified certificate is required, unless an option of the URL "
        "says otherwise (deploy/docs/ACCESS.md).",
        SqlUrlKind(),
        reloadable=True,
    )
    sql_password_file: str = option(
        "", "File of the password of its user, in place of one in the URL.", FilePath(), reloadable=True
    )
    sql_user_query: str = option(
        "",
        "Query for the row of a user: SELECT password_hash, ... WHERE username = ${username}. Placeholders are "
        "username, client_id, address and listener; columns password_hash, username, rules, roles, disabled and claims "
        "of tenants' rules.",
        SqlQuery(),
        reloadable=True,
    )
    sql_rules_query: str = option(
        "",
        "Query for the rules of a user, if they are not in its row: rows of access (read, write, readwrite or deny) "
        "and topic filter; or, with ${access} (1 = read, 2 = publish, 4 = subscribe) in it, of topic filters.",
        RulesQuery(),
        reloadable=True,
    )
    sql_timeout: float = option(
        2.0, "Seconds that the database may take for a reply.", Duration(0.1, 30), reloadable=True
    )
    sql_remember: float = option(
        60.0, "Seconds for which the row of a user is remembered.", Duration(0, DAY), reloadable=True
    )
    ldap_url: str = option(
        "",
        "LDAP server or Active Directory with users: ldap://HOST, ldaps://HOST or ldapi://%2FPATH; several, separated "
        "by spaces, are tried in turn.",
        Name(r"(ldap[si]?://[!-~]+( ldap[si]?://[!-~]+)*)?", 'a URL such as "ldaps://ldap.example"'),
        reloadable=True,
    )
    ldap_start_tls: bool = option(True, "Encrypt connections to ldap:// by StartTLS.", Boolean(), reloadable=True)
    ldap_ca_file: str = option(
        "",
        "PEM file with the authorities that sign the certificates of the servers; empty = the system's.",
        FilePath(),
        reloadable=True,
    )
    ldap_bind_dn: str = option(
        "", "Distinguished name that looks up users; empty = without authentication.", Text(), reloadable=True
    )
    ldap_password_file: str = option("", "File of its password.", FilePath(), reloadable=True)
    ldap_base: str = option("", "Distinguished name below which users are searched.", Text(), reloadable=True)
    ldap_filter: str = option(
        "(uid=${username})",
        "Filter that finds the entry of a user; values are escaped. Active Directory: (sAMAccountName=${username}).",
        LdapFilter(),
        reloadable=True,
    )
    ldap_username: str = option(
        "uid",
        "Attribute of the entry that is the user's name: directories compare without case. Active Directory: "
        "sAMAccountName.",
        Name("[A-Za-z][A-Za-z0-9;-]{0,100}", "the name of an attribute"),
        reloadable=True,
    )
    ldap_group_attribute: str = option(
        "memberOf",
        "Attribute of the entry with the distinguished names of its groups; empty = none.",
        Name("([A-Za-z][A-Za-z0-9;-]{0,100})?", "the name of an attribute"),
        reloadable=True,
    )
    ldap_group_base: str = option(
        "", "Distinguished name below which groups are searched; empty = no search.", Text(), reloadable=True
    )
    ldap_group_filter: str = option(
        "(member=${dn})",
        "Filter that finds the groups of a user: ${dn} is its distinguished name.",
        GroupFilter(),
        reloadable=True,
    )
    ldap_roles: tuple[LdapRole, ...] = option(
        (),
        "Roles of the members of groups, a table [[auth.ldap_roles]] each: group (its distinguished name; "
        '"*" = every user) and role.',
        LdapRoles(),
        reloadable=True,
    )
    ldap_timeout: float = option(
        3.0, "Seconds that the directory may take for a reply.", Duration(0.1, 30), reloadable=True
    )
    ldap_remember: float = option(
        60.0, "Seconds for which a right password is remembered.", Duration(0, DAY), reloadable=True
    )
    http_url: str = option(
        "",
        "URL of an HTTP back end that authenticates clients: JSON by POST, JSON in return (deploy/docs/ACCESS.md). "
        "Empty = none.",
        Name(r"(https?://\S+)?", 'a URL such as "https://127.0.0.1:8443/mqtt"'),
        reloadable=True,
    )
    http_timeout: float = option(2.0, "Timeout of a request, in seconds.", Duration(0.05, 30), reloadable=True)
    http_remember: float = option(
        60.0, "Seconds for which an accepted client is remembered.", Duration(0, DAY), reloadable=True
    )
    remember: float = option(
        300.0,
        "Seconds for which a right password is remembered, so that reconnecting costs no hashing. 0 = not at all.",
        Duration(0, DAY),
        reloadable=True,
    )
    remember_stored: float = option(
        30 * DAY,
        "Seconds for which the store keeps a proof that a password was right, so that a fleet that comes back after a "
        "restart costs little hashing (deploy/docs/ACCESS.md). 0 = no proofs.",
        Duration(0, 365 * DAY),
        reloadable=True,
    )
    failure_delay: float = option(
        0.5,
        "Seconds until wrong credentials are answered; doubled for each further failure of an address, up to 8. "
        "0 = at once.",
        Duration(0, 8),
        reloadable=True,
    )
