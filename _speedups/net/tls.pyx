# distutils: libraries = ssl crypto
"""TLS by OpenSSL, directly on the sockets: contexts with certificates, and the TLS state of one connection.

Python's `ssl` costs too much per message: a Python call for each record, and two system calls to read one. Here one
read returns all records received so far. Nothing blocks: a step that can't continue returns the event that it needs.
It has no connection and no configuration. OpenSSL keeps errors per thread, so each step first clears them.
"""

import hashlib

from libc.errno cimport errno
from libc.string cimport strerror
from libc.time cimport time

from .openssl cimport *
from .ticket_keys cimport TicketKeyRing


class TlsError(ValueError):
    """OpenSSL refuses a certificate, a key or a list of them; the text names it and the reason."""


cdef str last_error():
    """The first reason in OpenSSL's error queue."""
    cdef unsigned long code = ERR_get_error()
    cdef const char* reason = ERR_reason_error_string(code) if code else NULL
    ERR_clear_error()
    return reason.decode() if reason != NULL else "no reason given"


cdef int no_password(char* buffer, int size, int writing, void* context) noexcept:
    """Refuse a key with a password: there is no prompt for it."""
    return -1


cdef int choose_protocol(SSL* ssl, const unsigned char** chosen, unsigned char* size, const unsigned char* offered,
                         unsigned int n, void* context) noexcept:
    """ALPN: refuse a client that offers protocols without MQTT: it expects another service [RFC 7301, 3.2]."""
    cdef bytes ours = (<TlsContext>context).protocols
    if SSL_select_next_proto(<unsigned char**>chosen, size, <const unsigned char*>ours, len(ours), offered,
                             n) == OPENSSL_NPN_NEGOTIATED:
        return SSL_TLSEXT_ERR_OK
    return SSL_TLSEXT_ERR_ALERT_FATAL


cdef int choose_certificate(SSL* ssl, int* alert, void* context) noexcept:
    """SNI: select the certificate that has this name; the first one, if none has."""
    cdef const char* name = SSL_get_servername(ssl, TLSEXT_NAMETYPE_host_name)
    cdef SSL_CTX* chosen = NULL
    if name != NULL:
        chosen = (<TlsContext>context).named(name)
    if chosen != NULL:
        SSL_set_SSL_CTX(ssl, chosen)
    return SSL_TLSEXT_ERR_OK


cdef SSL_TICKET_RETURN judge_ticket(SSL* ssl, SSL_SESSION* session, const unsigned char* name, size_t size,
                                    SSL_TICKET_STATUS status, void* context) noexcept:
    """Resume the session of a ticket, or let a full handshake follow: it checks the client's certificate again."""
    cdef X509* shown
    if status != SSL_TICKET_SUCCESS and status != SSL_TICKET_SUCCESS_RENEW:
        return SSL_TICKET_RETURN_IGNORE_RENEW
    shown = SSL_SESSION_get0_peer(session)
    if shown != NULL and X509_cmp_current_time(X509_get0_notAfter(shown)) <= 0:
        return SSL_TICKET_RETURN_IGNORE_RENEW
    if time(NULL) - SSL_SESSION_get_time(session) >= SSL_CTX_get_timeout(SSL_get_SSL_CTX(ssl)):
        return SSL_TICKET_RETURN_IGNORE_RENEW      # the lifetime was longer when the ticket was made
    return SSL_TICKET_RETURN_USE if status == SSL_TICKET_SUCCESS else SSL_TICKET_RETURN_USE_RENEW


cdef bytes session_scope(str name, bint required, paths):
    """A digest of all that a session must have in common with the handshake that resumes it.

    That includes the contents of the files by which clients' certificates are verified: a resumed client is not
    verified again. It is to be read before OpenSSL reads them. Then a change in between voids sessions too many, not
    too few.
    """
    contents = []
    for path in paths:
        try:
            with open(path, "rb") as file:
                contents.append(file.read())
        except OSError as error:
            raise TlsError(f"{path} can't be read: {error.strerror}") from error
    return hashlib.sha256(repr((name, required, contents)).encode()).digest()


cdef class TlsContext:
    """The TLS settings of a listener: its certificates, and its requirements for client certificates.

    It has as many arguments as a listener has settings of TLS: each is named at the one place that makes contexts.

    Args:
        certificate: PEM file with the certificate and its chain.
        key: PEM file with its private key.
        others: pairs of such files; the name that a client requests selects one.
        client_ca: PEM file with the authorities of clients' certificates; "" = no client certificates are requested.
        client_crl: PEM file with the certificates that these authorities have revoked, or "".
        required: a client without a certificate is refused.
        username_from: "none", "cn" or "subject": the value of `Connection.certificate`.
        version: the oldest version accepted, "1.2" or "1.3".
        protocols: names for ALPN, the preferred one first.
        name: of the listener; a ticket of one is not valid at another.
        ticket_keys: seal the tickets by which clients resume sessions; None = no session is resumed.
        session_lifetime: seconds for which a session can be resumed.

    Raises:
        TlsError: a file can't be used.
    """

    def __cinit__(self):
        self.context = SSL_CTX_new(TLS_server_method())
        if self.context == NULL:
            raise MemoryError

    def __init__(self, str certificate not None, str key not None, others=(), *, str client_ca="", str client_crl="",
                 bint required=False, str username_from="none", str version="1.2", protocols=("mqtt",), str name="",
                 TicketKeyRing ticket_keys=None, long session_lifetime=0):
        cdef bytes scope = session_scope(name, required, [path for path in (client_ca, client_crl) if path])
        # The context that a name selects also checks the client's certificate and protocols.
        self.others = [
            TlsContext(*pair, client_ca=client_ca, client_crl=client_crl, required=required, protocols=protocols,
                       name=name, ticket_keys=ticket_keys, session_lifetime=session_lifetime)
            for pair in others
        ]
        self.ticket_keys = ticket_keys
        self.protocols = b"".join(bytes((len(p),)) + p.encode() for p in protocols)
        self.username_from = username_from
        ERR_clear_error()
        SSL_CTX_set_options(self.context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_IGNORE_UNEXPECTED_EOF
                            | SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA)
        # A blocked write is retried from a buffer that may have moved; an idle connection has no buffers.
        SSL_CTX_set_mode(self.context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER
                         | SSL_MODE_RELEASE_BUFFERS)
        SSL_CTX_set_read_ahead(self.context, 1)
        SSL_CTX_set_session_cache_mode(self.context, SSL_SESS_CACHE_OFF)  # tickets need no server memory
        SSL_CTX_set_session_id_context(self.context, scope, len(scope))
        if ticket_keys is None:
            SSL_CTX_set_options(self.context, SSL_OP_NO_TICKET)
            SSL_CTX_set_num_tickets(self.context, 0)
        else:
            ticket_keys.attach(self.context)
            SSL_CTX_set_session_ticket_cb(self.context, NULL, judge_ticket, NULL)
            SSL_CTX_set_num_tickets(self.context, 1)
            SSL_CTX_set_timeout(self.context, session_lifetime)
        SSL_CTX_set_min_proto_version(self.context, TLS1_3_VERSION if version == "1.3" else TLS1_2_VERSION)
        SSL_CTX_set_cipher_list(self.context, b"ECDHE+AESGCM:ECDHE+CHACHA20:ECDHE+AESCCM")
        SSL_CTX_set_ciphersuites(  # of TLS 1.3; the first is as secure as the second, and cheaper
            self.context, b"TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256")
        SSL_CTX_set_alpn_select_cb(self.context, choose_protocol, <void*>self)
        if self.others:
            SSL_CTX_set_tlsext_servername_callback(self.context, choose_certificate)
            SSL_CTX_set_tlsext_servername_arg(self.context, <void*>self)
        self.use(certificate, key)
        if client_ca:
            self.ask_clients(client_ca, client_crl, required)

    def __dealloc__(self):
        SSL_CTX_free(self.context)

    cdef int use(self, certificate, key) except -1:
        """Load the files of one certificate."""
        cdef int days = 0, seconds = 0
        cdef ASN1_TIME* epoch
        SSL_CTX_set_default_passwd_cb(self.context, no_password)
        if SSL_CTX_use_certificate_chain_file(self.context, certificate.encode()) != 1:
            raise TlsError(f"{certificate} has no certificate in PEM format: {last_error()}")
        if SSL_CTX_use_PrivateKey_file(self.context, key.encode(), SSL_FILETYPE_PEM) != 1:
            reason = last_error()
            if "mismatch" in reason:
                raise TlsError(f"{key} is not the key of {certificate}")
            raise TlsError(f"{key} has no private key that can be read without a password: {reason}")
        if SSL_CTX_check_private_key(self.context) != 1:
            ERR_clear_error()
            raise TlsError(f"{key} is not the key of {certificate}")
        epoch = ASN1_TIME_set(NULL, 0)
        ASN1_TIME_diff(&days, &seconds, epoch, X509_get0_notAfter(SSL_CTX_get0_certificate(self.context)))
        ASN1_TIME_free(epoch)
        self.expires = min([<int64_t>days * 86400 + seconds] + [other.expires for other in self.others])
        return 0

    def ask_clients(self, str authorities, str revoked, bint required):
        """Request certificates from clients."""
        cdef X509_LOOKUP* lookup
        path = authorities.encode()
        names = SSL_load_client_CA_file(path)
        if names == NULL or SSL_CTX_load_verify_file(self.context, path) != 1:
            raise TlsError(f"{authorities} has no certificates in PEM format: {last_error()}")
        SSL_CTX_set_client_CA_list(self.context, names)
        SSL_CTX_set_verify(self.context, SSL_VERIFY_PEER | (SSL_VERIFY_FAIL_IF_NO_PEER_CERT if required else 0), NULL)
        if revoked:
            lookup = X509_STORE_add_lookup(SSL_CTX_get_cert_store(self.context), X509_LOOKUP_file())
            if lookup == NULL or X509_load_crl_file(lookup, revoked.encode(), SSL_FILETYPE_PEM) < 1:
                raise TlsError(f"{revoked} has no list of revoked certificates in PEM format: {last_error()}")
            X509_STORE_set_flags(SSL_CTX_get_cert_store(self.context), X509_V_FLAG_CRL_CHECK)

    def index_of(self, str name not None):
        """The place of the certificate for a client that requests a name: 0 = the first one, n = the n-th of `others`.

        For servers with their own contexts for these certificates.
        """
        cdef bytes text = name.encode()
        cdef SSL_CTX* chosen = self.named(text)
        cdef TlsContext one
        for place, one in enumerate(self.others, 1):
            if one.context is chosen:
                return place
        return 0

    cdef SSL_CTX* named(self, const char* name) noexcept:
        """The context whose certificate has this name, exact before wildcard; NULL if it is none of `others`."""
        cdef TlsContext one
        cdef unsigned int flags
        for flags in (X509_CHECK_FLAG_NO_WILDCARDS, <unsigned int>0):
            for one in [self, *self.others]:
                if X509_check_host(SSL_CTX_get0_certificate(one.context), name, 0, flags, NULL) == 1:
                    return NULL if one is self else one.context
        return NULL


cdef class Tls:
    """The TLS of one connection, on a non-blocking socket, which it does not own.

    Args:
        context: the listener's context.
        fd: the socket.
    """

    def __cinit__(self, TlsContext context not None, int fd):
        self.context = context
        self.ssl = SSL_new(context.context)
        if self.ssl == NULL or SSL_set_fd(self.ssl, fd) != 1:
            raise MemoryError
        SSL_set_accept_state(self.ssl)

    def __dealloc__(self):
        SSL_free(self.ssl)

    cdef Py_ssize_t handshake(self) except -4:
        """Make a step of the handshake: 1 = done, 0 = the client has closed, else WANTS_READ, WANTS_WRITE or FAILED."""
        cdef int result
        ERR_clear_error()
        result = SSL_do_handshake(self.ssl)
        if result == 1:
            self.ready = True
            # Fewer reads and fewer TCP acknowledgements. Not more bytes: for each record OpenSSL moves the rest of the
            # buffer to its front. Not earlier: an unfinished handshake would keep the buffer.
            SSL_set_default_read_buffer_len(self.ssl, READ_AHEAD)
            return 1
        return self.explain(result)

    cdef Py_ssize_t read(self, uint8_t* p, Py_ssize_t room) except -4:
        """Read received bytes, up to `room`, over all records; returns 0 at the end of the connection."""
        cdef Py_ssize_t total = 0
        cdef int got
        ERR_clear_error()
        self.more = False
        while True:
            got = SSL_read(self.ssl, p + total, <int>(room - total))
            if got <= 0:
                if total == 0:
                    return self.explain(got)
                self.more = SSL_get_error(self.ssl, got) != SSL_ERROR_WANT_READ  # the next read returns that again
                return total
            total += got
            if not SSL_has_pending(self.ssl):
                return total
            if total == room:
                self.more = True
                return total

    cdef Py_ssize_t write(self, const uint8_t* p, Py_ssize_t n) except -4:
        """Send one record; returns its bytes of payload. After WANTS_WRITE the caller must repeat the same bytes."""
        cdef int sent
        ERR_clear_error()
        sent = SSL_write(self.ssl, p, <int>min(n, <Py_ssize_t>RECORD_MAX))
        return sent if sent > 0 else self.explain(sent)

    cdef Py_ssize_t explain(self, int result) except -4:
        """Convert a failed step to WANTS_READ, WANTS_WRITE, 0 or FAILED with `fault`."""
        cdef int code = errno
        cdef int kind = SSL_get_error(self.ssl, result)
        cdef long verified
        if kind == SSL_ERROR_WANT_READ:
            return WANTS_READ
        if kind == SSL_ERROR_WANT_WRITE:
            return WANTS_WRITE
        if kind == SSL_ERROR_ZERO_RETURN or (kind == SSL_ERROR_SYSCALL and code == 0):
            return 0
        if kind == SSL_ERROR_SYSCALL:
            self.fault = strerror(code).decode()
            return FAILED
        self.fault = f"TLS: {last_error()}"
        verified = SSL_get_verify_result(self.ssl)
        if not self.ready and verified != X509_V_OK:
            self.fault = f"TLS: certificate verify failed: {X509_verify_cert_error_string(verified).decode()}"
        return FAILED

    @property
    def version(self):
        """"TLSv1.2" or "TLSv1.3"."""
        return SSL_get_version(self.ssl).decode()

    cdef bint resumed(self) noexcept:
        """Whether the handshake resumed an earlier session of the client."""
        return SSL_session_reused(self.ssl)

    cdef str server_name(self):
        """The name of the server that the client has asked for; empty if it has named none."""
        cdef const char* name = SSL_get_servername(self.ssl, TLSEXT_NAMETYPE_host_name)
        return (<bytes>name).decode("ascii", "replace") if name != NULL else ""

    cdef str certificate(self):
        """The subject of the client's verified certificate, in the form that the context selects.

        None if there is no certificate, or its value is not unique.
        """
        cdef X509_NAME* subject
        cdef X509* shown = SSL_get1_peer_certificate(self.ssl) if self.context.username_from != "none" else NULL
        if shown == NULL:
            return None
        try:
            subject = X509_get_subject_name(shown)
            text = common_name(subject) if self.context.username_from == "cn" else whole_subject(subject)
        finally:
            X509_free(shown)
        try:
            name = text.decode()
        except UnicodeDecodeError:
            return None
        return name if name and "\0" not in name else None

    cdef int shutdown(self) except -1:
        """Send the close notice, if there is room for it."""
        if self.ready and self.fault is None:      # SSL_shutdown is forbidden after a fatal error
            ERR_clear_error()
            SSL_shutdown(self.ssl)
        return 0


cdef bytes common_name(X509_NAME* subject):
    """The common name; nothing if there are several."""
    cdef int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1), size
    cdef unsigned char* text = NULL
    if at < 0 or X509_NAME_get_index_by_NID(subject, NID_commonName, at) >= 0:
        return b""
    size = ASN1_STRING_to_UTF8(&text, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)))
    if size < 0:
        return b""
    try:
        return text[:size]
    finally:
        OPENSSL_free(text)


cdef bytes whole_subject(X509_NAME* subject):
    """The whole subject, in the form of RFC 2253."""
    cdef BIO* memory = BIO_new(BIO_s_mem())
    cdef char* text = NULL
    cdef long size
    if memory == NULL:
        raise MemoryError
    try:
        if X509_NAME_print_ex(memory, subject, 0, XN_FLAG_RFC2253) < 0:
            return b""
        size = BIO_get_mem_data(memory, &text)
        return text[:size]
    finally:
        BIO_free(memory)
