"""Redis URLs: the meaning of each form, one clear sentence for the rest, and no password in either."""

from pathlib import Path

import pytest

from flockmq.broker.config.redis_url import RedisUrl, masked


@pytest.mark.parametrize(
    ("url", "fields"),
    [
        ("redis://h", {"kind": "tcp", "hosts": (("h", 6379),)}),
        ("redis://h:1/", {"kind": "tcp", "hosts": (("h", 1),)}),
        ("redis://[::1]:1/15", {"kind": "tcp", "hosts": (("::1", 1),), "db": 15}),
        ("redis://[::1]", {"kind": "tcp", "hosts": (("::1", 6379),)}),
        ("redis://:p%40%2F@h", {"kind": "tcp", "hosts": (("h", 6379),), "password": "p@/"}),
        ("redis://u:a@b:c@h", {"kind": "tcp", "hosts": (("h", 6379),), "username": "u", "password": "a@b:c"}),
        (
            "rediss://h/2?ca_file=/a%20b&verify=ca",
            {"kind": "tls", "tls": True, "hosts": (("h", 6379),), "db": 2, "ca_file": "/a b", "verify": "ca"},
        ),
        (
            "rediss://h?cert_file=c&key_file=k",
            {"kind": "tls", "tls": True, "hosts": (("h", 6379),), "cert_file": "c", "key_file": "k"},
        ),
        ("unix:///run/redis.sock", {"kind": "unix", "path": "/run/redis.sock"}),
        ("unix://u:p@/r.sock?db=3", {"kind": "unix", "path": "/r.sock", "username": "u", "password": "p", "db": 3}),
        (
            "redis+sentinel://a,b:1,[::1]:2/mymaster",
            {"kind": "sentinel", "hosts": (("a", 26379), ("b", 1), ("::1", 2)), "master": "mymaster"},
        ),
        (
            "redis+sentinel://u:p@a/m/4?tls=true&sentinel_username=s&sentinel_password=q%26&ca_file=f",
            {
                "kind": "sentinel",
                "hosts": (("a", 26379),),
                "master": "m",
                "db": 4,
                "tls": True,
                "username": "u",
                "password": "p",
                "sentinel_username": "s",
                "sentinel_password": "q&",
                "ca_file": "f",
            },
        ),
        ("redis+cluster://a,b:1,[::1]:2", {"kind": "cluster", "hosts": (("a", 6379), ("b", 1), ("::1", 2))}),
        (
            "rediss+cluster://u:p@a/?ca_file=f&verify=ca",
            {
                "kind": "cluster",
                "hosts": (("a", 6379),),
                "tls": True,
                "username": "u",
                "password": "p",
                "ca_file": "f",
                "verify": "ca",
            },
        ),
        ("redis+cluster://a?tls=true", {"kind": "cluster", "hosts": (("a", 6379),), "tls": True}),
    ],
)
def test_what_a_url_means(url: str, fields: dict[str, object]) -> None:
    assert RedisUrl.parse(url) == RedisUrl(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "redis://"),
        ("localhost:6379", "redis://"),
        ("redis:localhost", "redis://"),
        ("http://h", "redis+sentinel://"),
        ("redis://", "redis://"),
        ("redis://h h", "redis://"),
        ("redis://h:0", "port from 1"),
        ("redis://h:x", "port from 1"),
        ("redis://::1:6379", "brackets"),
        ("redis://h/x", "number of a database"),
        ("redis://h/65536", "number of a database"),
        ("redis://a,b", "redis+sentinel://"),
        ("redis://user@h", "password after the user name"),
        ("redis://h?verify=none", "only password_file"),
        ("redis://:p@h?password_file=/f", "not both"),
        ("redis://h?password_file=/nowhere/f", "/nowhere/f: No such file"),
        ("redis://h?password_file=/dev/null", "is empty"),
        ("rediss://h?verify=no", "full, ca, none"),
        ("rediss://h?cert_file=c", "together"),
        ("rediss://h?cafile=c", "ca_file"),
        ("unix://run/redis.sock", "path of a socket"),
        ("unix:///s?db=x", "number of a database"),
        ("redis+sentinel://a,b", "master's name"),
        ("redis+sentinel://a,/m", "redis://"),
        ("redis+sentinel://a/m?tls=yes", "true or false"),
        ("redis+cluster://", "redis+cluster://"),
        ("redis+cluster://a,b/1", "no database"),
        ("redis+cluster://a?sentinel_password=p", "only ca_file"),
        ("rediss+sentinel://a/m", "redis+sentinel://"),
    ],
)
def test_a_wrong_url_is_one_clear_line(url: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        RedisUrl.parse(url)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h", "redis://h:6379/0"),
        ("redis://u:sesame@[::1]:1/2", "redis://u:***@[::1]:1/2"),
        ("rediss://:sesame@h", "rediss://:***@h:6379/0"),
        ("unix://:sesame@/r.sock?db=1", "unix://:***@/r.sock?db=1"),
        (
            "redis+sentinel://u:sesame@a,b/m/1?sentinel_password=sesame&tls=true",
            "redis+sentinel://u:***@a:26379,b:26379/m/1?tls=true",
        ),
        ("redis+cluster://:sesame@a,[::1]:2", "redis+cluster://:***@a:6379,[::1]:2"),
        ("rediss+cluster://u:sesame@a?verify=ca", "rediss+cluster://u:***@a:6379"),
    ],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    parsed = RedisUrl.parse(url)
    assert str(parsed) == shown
    assert "sesame" not in repr(parsed)
    assert "sesame" not in masked(url)


@pytest.mark.parametrize(
    "url", ["redis://h", "redis://u@h/1", "rediss://h", "unix:///r.sock", "redis+sentinel://h/m", "redis+cluster://h"]
)
def test_a_password_from_a_file(url: str, tmp_path: Path) -> None:
    file = tmp_path / "pass word"
    file.write_text("ses@me/1\n")
    parsed = RedisUrl.parse(f"{url}?password_file={str(file).replace(' ', '%20')}")
    assert parsed.password == "ses@me/1"
    assert parsed.username == ("u" if "u@" in url else "")
    assert "ses@me" not in str(parsed) + repr(parsed)


def test_a_password_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="not UTF-8"):
        RedisUrl.parse(f"redis://h?password_file={tmp_path}/f")


def test_each_of_several_urls_is_shown_without_its_password() -> None:
    assert masked("redis://:sesame@a redis://h rediss://ada:sesame@b") == "redis://:***@a redis://h rediss://ada:***@b"
    assert "sesame" not in masked("redis://:open sesame@h redis://i")
