# distutils: libraries = ssl crypto
"""The keys by which TLS contexts seal session tickets, and open the tickets that clients bring back.

A ticket is a TLS session, encrypted by AES-256-CBC and authenticated by HMAC-SHA256, as RFC 5077 recommends. OpenSSL's
own keys are random for each context, so a ticket would be worthless after a restart and at other nodes.
"""

import os

from libc.stdint cimport uint8_t
from libc.string cimport memcmp, memcpy

from .openssl cimport *

cdef enum:
    # Parts of a key, in this order.
    NAME_SIZE = 16             # in plain text in the ticket
    CIPHER_SIZE = 32
    MAC_SIZE = 32
    SIZE = NAME_SIZE + CIPHER_SIZE + MAC_SIZE

    IV_SIZE = 16

KEY_SIZE = SIZE

cdef EVP_CIPHER* aes = EVP_CIPHER_fetch(NULL, b"AES-256-CBC", NULL)    # once: a search by name for each ticket is slow
if aes == NULL:
    raise ImportError("OpenSSL has no AES-256-CBC")


cdef class TicketKeyRing:
    """The keys of all contexts of a node. Until `use` it has a random key."""

    def __init__(self):
        self.use([os.urandom(SIZE)])

    def use(self, keys):
        """Use these keys from now on.

        Args:
            keys: `KEY_SIZE` random bytes each; the first one seals new tickets, and all of them open tickets.

        Raises:
            ValueError: there is none, or one has another size.
        """
        keys = list(keys)
        if not keys or any(len(key) != SIZE for key in keys):
            raise ValueError(f"expected keys of {SIZE} bytes")
        self.keys = b"".join(keys)

    cdef int attach(self, SSL_CTX* context) except -1:
        """Let the context seal and open its tickets by these keys. The ring must outlive it."""
        SSL_CTX_set_app_data(context, <void*>self)
        SSL_CTX_set_tlsext_ticket_key_evp_cb(context, select_key)
        return 0


cdef int select_key(SSL* ssl, unsigned char* name, unsigned char* iv, EVP_CIPHER_CTX* cipher, EVP_MAC_CTX* mac,
                    int seals) noexcept:
    """Prepare to seal or open a ticket: 1 = done, 2 = done, and the client is to get a new ticket, -1 = failed.

    0 = the key is not known, so a full handshake follows.
    """
    cdef bytes keys = (<TicketKeyRing>SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl))).keys
    cdef const uint8_t* first = keys
    cdef const uint8_t* end = first + len(keys)
    cdef const uint8_t* key = first
    if seals:
        memcpy(name, key, NAME_SIZE)
        if RAND_bytes(iv, IV_SIZE) != 1:
            return -1
    else:
        while memcmp(name, key, NAME_SIZE) != 0:
            key += SIZE
            if key == end:
                return 0
    if EVP_CipherInit_ex2(cipher, aes, key + NAME_SIZE, iv, seals, NULL) != 1 or not set_mac(mac, key):
        return -1
    # Clients of TLS 1.3 use a ticket once [RFC 8446, C.4].
    return 1 if seals or (key == first and SSL_version(ssl) < TLS1_3_VERSION) else 2


cdef bint set_mac(EVP_MAC_CTX* mac, const uint8_t* key) noexcept:
    """Set the key and the digest of a ticket's authentication; returns whether it worked."""
    cdef OSSL_PARAM settings[3]
    settings[0] = OSSL_PARAM_construct_octet_string(OSSL_MAC_PARAM_KEY, <void*>(key + NAME_SIZE + CIPHER_SIZE),
                                                    MAC_SIZE)
    settings[1] = OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, b"SHA256", 0)
    settings[2] = OSSL_PARAM_construct_end()
    return EVP_MAC_CTX_set_params(mac, settings) == 1
