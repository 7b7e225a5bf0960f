"""The flags of `pub`, `sub` and `replay` for TLS, with mosquitto's names, and the `ssl` context that they describe."""

from argparse import Namespace, _ArgumentGroup
from typing import TYPE_CHECKING

from ..errors import UsageError
from .parser import Parser

if TYPE_CHECKING:
    from ssl import SSLContext


def add_tls_options(parser: Parser) -> None:
    """The flags of a command whose broker has a host and a port."""
    group = parser.add_argument_group("TLS, to port 8883 unless -p is given; any of these turns it on")
    group.add_argument("--tls", action="store_true", help="trust the authorities that this system trusts")
    add_certificate_options(group)


def add_certificate_options(group: _ArgumentGroup) -> None:
    """The flags of a command whose broker has a URL."""
    group.add_argument("--cafile", metavar="FILE", help="trust the authorities in this PEM file instead")
    group.add_argument("--cert", metavar="FILE", help="the client certificate, and its intermediate certificates: PEM")
    group.add_argument("--key", metavar="FILE", help="its private key: PEM [in the file of --cert]")
    group.add_argument("--insecure", action="store_true", help="accept a certificate of another name")


def names_certificates(args: Namespace) -> bool:
    """Whether one of `add_certificate_options` is given."""
    return bool(args.cafile or args.cert or args.key or args.insecure)


def tls_context(args: Namespace) -> "SSLContext | None":
    """The context of the flags; None: no TLS. Raises UsageError."""
    if not (args.tls or names_certificates(args)):
        return None
    import ssl

    if args.key and not args.cert:
        raise UsageError("--key needs --cert")
    try:
        context = ssl.create_default_context(cafile=args.cafile)
    except OSError as error:  # ssl's own errors too
        raise UsageError(f"--cafile {args.cafile}: {error.strerror or error}", "expected a PEM file") from None
    try:
        if args.cert:
            context.load_cert_chain(args.cert, args.key)
    except OSError as error:
        raise UsageError(f"--cert, --key: {error.strerror or error}", "expected PEM files that fit") from None
    context.check_hostname = not args.insecure
    return context
