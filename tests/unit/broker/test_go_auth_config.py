"""`flockmq import` of configurations with mosquitto-go-auth: as people have them, with losses named."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flockmq.broker.config.go_auth import WITHOUT_EFFECT, counterpart
from flockmq.broker.config.load import load
from flockmq.broker.config.mosquitto import Translated, translate
from flockmq.broker.config.schema import Config
from flockmq.broker.errors import ConfigError

PLUGIN = "listener 1883\nauth_plugin /mosquitto/go-auth.so\n"
POSTGRES = """
auth_opt_backends postgres
auth_opt_pg_host db
auth_opt_pg_dbname iot
auth_opt_pg_user mqtt
auth_opt_pg_password p@ss/w:rd#1
auth_opt_pg_userquery SELECT password_hash FROM accounts WHERE username = $1 AND enabled LIMIT 1
"""
MYSQL = """
auth_opt_backends mysql
auth_opt_mysql_host 10.0.0.5
auth_opt_mysql_port 3307
auth_opt_mysql_dbname mosquitto
auth_opt_mysql_user mosquitto
auth_opt_mysql_password hush
auth_opt_mysql_allow_native_passwords true
auth_opt_mysql_userquery SELECT password_hash FROM users WHERE username = ? limit 1
"""
Import = Callable[..., tuple[Config, Translated]]


@pytest.fixture
def imported(tmp_path: Path) -> Import:
    """The configuration of a mosquitto.conf with these options of the plugin."""

    def translated(options: str, *accepted: str, head: str = PLUGIN) -> tuple[Config, Translated]:
        source, made = tmp_path / "mosquitto.conf", tmp_path / "flockmq.toml"
        source.write_text(head + options)
        found = translate(source, accepted)
        made.write_text(found.toml)
        return load({}, {}, made), found

    return translated


def test_postgresql(imported: Import) -> None:
    """With caches and a superuser; the password is in the URL and nowhere else."""
    config, found = imported(
        POSTGRES
        + """
auth_opt_pg_superquery SELECT count(*) FROM accounts WHERE username = $1 AND is_superuser
auth_opt_pg_aclquery SELECT topic FROM acls WHERE username = $1 AND (access & $2) <> 0;
auth_opt_hasher pbkdf2
auth_opt_hasher_salt_encoding base64
auth_opt_cache true
auth_opt_cache_type go-cache
auth_opt_auth_cache_seconds 5
auth_opt_acl_cache_seconds 30
auth_opt_log_level warn
"""
    )
    auth = config.auth
    assert auth.sql_url == "postgresql://mqtt:p%40ss%2Fw%3Ard%231@db:5432/iot?sslmode=verify-full"
    assert auth.sql_user_query == "SELECT password_hash FROM accounts WHERE username = ${username} AND enabled LIMIT 1"
    assert auth.sql_rules_query.startswith(
        "SELECT * FROM (SELECT topic FROM acls WHERE username = ${username} AND (access & ${access}) <> 0) AS "
    )
    assert auth.sql_rules_query.count("is_superuser) > 0") == 2 and "'#'" in auth.sql_rules_query
    assert auth.sql_remember == 5.0 and not auth.allow_anonymous
    assert found.losses == found.warnings == [] and "no counterpart" not in found.toml
    assert found.toml.count("p%40ss") == 1 and "p@ss" not in found.toml


def test_files_and_postgresql(imported: Import) -> None:
    """An administrator in files, and queries without an access."""
    config, found = imported(
        POSTGRES.replace("backends postgres", "backends files, postgres")
        + """
auth_opt_files_password_path /etc/mosquitto/admin
auth_opt_files_acl_path /etc/mosquitto/acl
auth_opt_files_hasher bcrypt
auth_opt_pg_sslmode disable
auth_opt_pg_aclquery SELECT CONCAT('owntracks/', username, '/+') as topic FROM sources WHERE username = $1
auth_opt_pg_hasher_cost 12
auth_opt_check_prefix false
"""
    )
    assert config.auth.password_file == "/etc/mosquitto/admin" and config.auth.acl_file == "/etc/mosquitto/acl"
    assert config.auth.sql_rules_query.startswith("SELECT 'readwrite', topics.* FROM (SELECT CONCAT('owntracks/'")
    assert "sslmode=disable" in config.auth.sql_url and not found.losses


@pytest.mark.parametrize(
    ("more", "options"),
    [
        ("", "?verify=none"),
        ("auth_opt_mysql_sslmode false\n", "?verify=none"),
        ("auth_opt_mysql_sslmode true\n", "?verify=full"),
        ("auth_opt_mysql_sslmode skip-verify\n", "?verify=ca"),
        ("auth_opt_mysql_sslmode custom\nauth_opt_mysql_sslrootcert /c a.pem\n", "?verify=full&ca_file=/c%20a.pem"),
        ("auth_opt_mysql_protocol unix\nauth_opt_mysql_socket /run/mysqld.sock\n", "?socket=/run/mysqld.sock"),
    ],
)
def test_mysql(imported: Import, more: str, options: str) -> None:
    rules = "SELECT topic FROM acl JOIN users ON user_id = id WHERE username = ? AND rw = ?"
    config, _ = imported(f"{MYSQL}auth_opt_mysql_aclquery {rules}\n{more}")
    assert config.auth.sql_url == f"mysql://mosquitto:hush@10.0.0.5:3307/mosquitto{options}"
    assert config.auth.sql_user_query.endswith("username = ${username} limit 1")
    assert config.auth.sql_rules_query == rules.replace("?", "${username}", 1).replace("?", "${access}")


def test_a_question_mark_in_a_literal_is_no_placeholder(imported: Import) -> None:
    query = "auth_opt_mysql_userquery SELECT hash FROM u WHERE name = ? AND note <> 'why? it''s ?'"
    config, _ = imported(f"{MYSQL}{query}\n")
    assert config.auth.sql_user_query == "SELECT hash FROM u WHERE name = ${username} AND note <> 'why? it''s ?'"


def test_sqlite_by_client_identifier(imported: Import) -> None:
    config, _ = imported(
        """auth_opt_backends sqlite
auth_opt_sqlite_source /data/users.db
auth_opt_sqlite_userquery SELECT hash FROM devices WHERE id = ?
auth_opt_use_clientid_as_username true
"""
    )
    assert config.auth.sql_url == "sqlite:/data/users.db"
    assert config.auth.sql_user_query == "SELECT hash FROM devices WHERE id = ${client_id}"


def test_ldap(imported: Import) -> None:
    config, found = imported(
        """auth_opt_backends ldap
auth_opt_ldap_url ldap://ldap.example:389
auth_opt_ldap_user_dn ou=people,dc=example,dc=org
auth_opt_ldap_bind_dn cn=reader,dc=example,dc=org
auth_opt_ldap_bind_password hush
auth_opt_ldap_user_filter (&(objectClass=person)(mail=%s))
"""
    )
    auth = config.auth
    assert auth.ldap_url == "ldap://ldap.example:389" and auth.ldap_base == "ou=people,dc=example,dc=org"
    assert auth.ldap_filter == "(&(objectClass=person)(mail=${username}))" and auth.ldap_username == "mail"
    assert auth.ldap_start_tls and "StartTLS" in " ".join(found.warnings) and "hush" not in found.toml


def test_http_and_files(imported: Import) -> None:
    """As the add-on of Home Assistant had them."""
    config, found = imported(
        """auth_opt_backends files,http
auth_opt_files_password_path /etc/mosquitto/pw
auth_opt_files_acl_path /etc/mosquitto/acl
auth_opt_http_host 127.0.0.1
auth_opt_http_port 80
auth_opt_http_getuser_uri /authentication
auth_opt_http_superuser_uri /superuser
auth_opt_http_aclcheck_uri /acl
"""
    )
    assert config.auth.http_url == "http://127.0.0.1:80/authentication"
    assert "requests and replies are others here" in found.warnings[0]


def test_back_ends_without_a_counterpart_are_named(imported: Import) -> None:
    config, found = imported(
        POSTGRES.replace("backends postgres", "backends postgres, redis, mysql, jwt")
        + "auth_opt_redis_password hush\nauth_opt_jwt_mode files\nauth_opt_jwt_secret hush\n"
    )
    assert config.auth.sql_url and "hush" not in found.toml
    words = " ".join(found.warnings)
    assert "users of redis" in words and "users of mysql" in words and "auth.jwt_secret_file" in words


@pytest.mark.parametrize(
    ("options", "loss"),
    [
        ("auth_opt_backends redis\n", "auth_opt_backends redis"),
        ("auth_opt_backends jwt\nauth_opt_jwt_secret hush\n", "auth_opt_backends jwt"),
        ("auth_opt_backends files, http\nauth_opt_files_password_path /p\nauth_opt_http_host h\n", "all rights"),
        (f"{POSTGRES}auth_opt_pg_register user\n", "users of postgres would have all rights"),
        (
            "auth_opt_backends files, mysql\nauth_opt_files_password_path /p\nauth_opt_mysql_register acl\n"
            "auth_opt_mysql_aclquery SELECT topic FROM acl WHERE username = ?\n",
            "would have none",
        ),
        (
            "auth_opt_backends ldap\nauth_opt_ldap_user_dn d=a\nauth_opt_ldap_bind_dn d=a\n"
            "auth_opt_ldap_bind_password x\nauth_opt_ldap_user_filter (uid=%s)\n"
            "auth_opt_ldap_acl_topic_pattern_attribute mqttTopic\n",
            "would have no rules",
        ),
    ],
)
def test_what_would_open_something_stops_the_import(imported: Import, options: str, loss: str) -> None:
    with pytest.raises(ConfigError, match="something would be open") as caught:
        imported(options)
    assert loss in caught.value.message and "hush" not in caught.value.message
    name = caught.value.hint.rpartition("--accept ")[2]
    names = [word for word in caught.value.hint.split() if word.startswith("auth_opt_")]
    assert name in names
    _, found = imported(options, *names)
    assert found.losses


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ("", "names nothing"),
        ("auth_opt_backends oracle\n", "names oracle"),
        ("auth_opt_backends files\n", "files_password_path is missing"),
        (POSTGRES.replace("auth_opt_pg_user mqtt", ""), "auth_opt_pg_user is missing"),
        (POSTGRES.replace("$1", "$2"), "no value for '\\$2'"),
        (POSTGRES.replace("username = $1", "true"), "placeholder"),
        (f"{POSTGRES}auth_opt_pg_aclquery SELECT topic FROM a WHERE u = $1 AND rw >= $2 AND $3 LIKE topic\n", "'\\$3'"),
        (MYSQL.replace("= ?", "= ? OR mail = ?"), "no value for '\\?'"),
    ],
)
def test_what_the_plugin_would_refuse(imported: Import, options: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        imported(options)


def test_options_of_one_listener(imported: Import) -> None:
    """With per_listener_settings the plugin is the listener's."""
    config, _ = imported(f"{POSTGRES}listener 1884\npassword_file /p\n", head="per_listener_settings true\n" + PLUGIN)
    first, second = config.listeners
    assert {bool(first.auth.sql_url), bool(second.auth.sql_url)} == {True, False}
    assert {first.auth.password_file, second.auth.password_file} == {"", "/p"}


def test_another_plugin_has_its_own_options(imported: Import) -> None:
    with pytest.raises(ConfigError, match=r"auth_plugin /other\.so"):
        imported(f"{POSTGRES}auth_plugin /other.so\nauth_opt_backends files\n")


def test_each_option_is_said_to_be_without_effect_for_a_reason() -> None:
    options = {"backends": "files", "files_password_path": "/p", "log_level": "debug", "pg_hasher_cost": "12", "x": "y"}
    notes = counterpart(options).notes
    assert notes == [
        "auth_opt_log_level debug: see [log]",
        "auth_opt_pg_hasher_cost 12: the format of each hash is recognized",
        "auth_opt_x y: no counterpart",
    ]
    assert all(WITHOUT_EFFECT.values())
