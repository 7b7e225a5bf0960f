# The parts of OpenSSL 3 (libssl, libcrypto) in use: names and types as in its manual pages.

cdef extern from "<openssl/ssl.h>" nogil:
    ctypedef struct SSL:
        pass
    ctypedef struct SSL_CTX:
        pass
    ctypedef struct SSL_METHOD:
        pass
    ctypedef struct SSL_SESSION:
        pass
    ctypedef int SSL_TICKET_STATUS
    ctypedef int SSL_TICKET_RETURN
    const SSL_METHOD* TLS_server_method()
    const SSL_METHOD* TLS_client_method()
    SSL_CTX* SSL_CTX_new(const SSL_METHOD*)
    void SSL_CTX_free(SSL_CTX*)
    unsigned long long SSL_CTX_set_options(SSL_CTX*, unsigned long long)
    long SSL_CTX_set_mode(SSL_CTX*, long)
    long SSL_CTX_set_session_cache_mode(SSL_CTX*, long)
    int SSL_CTX_set_session_id_context(SSL_CTX*, const unsigned char*, unsigned int)
    int SSL_CTX_set_num_tickets(SSL_CTX*, size_t)
    long SSL_CTX_set_timeout(SSL_CTX*, long)
    long SSL_CTX_get_timeout(const SSL_CTX*)
    int SSL_CTX_set_app_data(SSL_CTX*, void*)
    void* SSL_CTX_get_app_data(const SSL_CTX*)
    int SSL_CTX_set_min_proto_version(SSL_CTX*, int)
    int SSL_CTX_set_cipher_list(SSL_CTX*, const char*)
    int SSL_CTX_set_ciphersuites(SSL_CTX*, const char*)
    int SSL_CTX_set_read_ahead(SSL_CTX*, int)
    int SSL_CTX_use_certificate_chain_file(SSL_CTX*, const char*)
    int SSL_CTX_use_PrivateKey_file(SSL_CTX*, const char*, int)
    int SSL_CTX_check_private_key(const SSL_CTX*)
    X509* SSL_CTX_get0_certificate(const SSL_CTX*)
    X509_STORE* SSL_CTX_get_cert_store(const SSL_CTX*)
    int SSL_CTX_load_verify_file(SSL_CTX*, const char*)
    void* SSL_load_client_CA_file(const char*)
    void SSL_CTX_set_client_CA_list(SSL_CTX*, void*)
    void SSL_CTX_set_verify(SSL_CTX*, int, void*)
    int SSL_select_next_proto(unsigned char**, unsigned char*, const unsigned char*, unsigned int,
                              const unsigned char*, unsigned int)
    const char* SSL_get_servername(const SSL*, int)
    SSL_CTX* SSL_set_SSL_CTX(SSL*, SSL_CTX*)
    SSL_CTX* SSL_get_SSL_CTX(const SSL*)

    SSL* SSL_new(SSL_CTX*)
    void SSL_free(SSL*)
    int SSL_set_fd(SSL*, int)
    void SSL_set_default_read_buffer_len(SSL*, size_t)
    void SSL_set_accept_state(SSL*)
    void SSL_set_connect_state(SSL*)
    int SSL_do_handshake(SSL*)
    int SSL_read(SSL*, void*, int)
    int SSL_write(SSL*, const void*, int)
    int SSL_shutdown(SSL*)
    int SSL_has_pending(const SSL*)
    int SSL_session_reused(const SSL*)
    int SSL_get_error(const SSL*, int)
    long SSL_get_verify_result(const SSL*)
    X509* SSL_get1_peer_certificate(const SSL*)
    const char* SSL_get_version(const SSL*)
    int SSL_version(const SSL*)
    X509* SSL_SESSION_get0_peer(SSL_SESSION*)
    long SSL_SESSION_get_time(const SSL_SESSION*)

    int SSL_ERROR_WANT_READ, SSL_ERROR_WANT_WRITE, SSL_ERROR_ZERO_RETURN, SSL_ERROR_SYSCALL
    int SSL_FILETYPE_PEM, SSL_VERIFY_PEER, SSL_VERIFY_FAIL_IF_NO_PEER_CERT, SSL_SESS_CACHE_OFF
    int TLS1_2_VERSION, TLS1_3_VERSION
    int SSL_TLSEXT_ERR_OK, SSL_TLSEXT_ERR_ALERT_FATAL, SSL_TLSEXT_ERR_NOACK
    int TLSEXT_NAMETYPE_host_name, OPENSSL_NPN_NEGOTIATED
    int SSL_TICKET_SUCCESS, SSL_TICKET_SUCCESS_RENEW
    int SSL_TICKET_RETURN_IGNORE_RENEW, SSL_TICKET_RETURN_USE, SSL_TICKET_RETURN_USE_RENEW
    long SSL_MODE_ENABLE_PARTIAL_WRITE, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER, SSL_MODE_RELEASE_BUFFERS
    unsigned long long SSL_OP_NO_RENEGOTIATION, SSL_OP_NO_COMPRESSION, SSL_OP_CIPHER_SERVER_PREFERENCE
    unsigned long long SSL_OP_PRIORITIZE_CHACHA, SSL_OP_IGNORE_UNEXPECTED_EOF, SSL_OP_NO_TICKET

# The broker's callbacks need the GIL, so the caller of a server handshake must hold it.
cdef extern from "<openssl/ssl.h>":
    ctypedef int (*alpn_callback)(SSL*, const unsigned char**, unsigned char*, const unsigned char*, unsigned int,
                                  void*) noexcept
    void SSL_CTX_set_alpn_select_cb(SSL_CTX*, alpn_callback, void*)
    ctypedef int (*servername_callback)(SSL*, int*, void*) noexcept
    long SSL_CTX_set_tlsext_servername_callback(SSL_CTX*, servername_callback)
    long SSL_CTX_set_tlsext_servername_arg(SSL_CTX*, void*)
    ctypedef int (*password_callback)(char*, int, int, void*) noexcept
    void SSL_CTX_set_default_passwd_cb(SSL_CTX*, password_callback)
    ctypedef int (*ticket_key_callback)(SSL*, unsigned char*, unsigned char*, EVP_CIPHER_CTX*, EVP_MAC_CTX*,
                                        int) noexcept
    int SSL_CTX_set_tlsext_ticket_key_evp_cb(SSL_CTX*, ticket_key_callback)
    ctypedef int (*sealing_callback)(SSL*, void*) noexcept
    ctypedef SSL_TICKET_RETURN (*opened_callback)(SSL*, SSL_SESSION*, const unsigned char*, size_t, SSL_TICKET_STATUS,
                                                  void*) noexcept
    int SSL_CTX_set_session_ticket_cb(SSL_CTX*, sealing_callback, opened_callback, void*)

cdef extern from "<openssl/x509v3.h>" nogil:
    ctypedef struct X509:
        pass
    ctypedef struct X509_NAME:
        pass
    ctypedef struct X509_NAME_ENTRY:
        pass
    ctypedef struct X509_STORE:
        pass
    ctypedef struct X509_LOOKUP:
        pass
    ctypedef struct ASN1_TIME:
        pass
    ctypedef struct ASN1_STRING:
        pass
    void X509_free(X509*)
    int X509_check_host(X509*, const char*, size_t, unsigned int, char**)
    X509_NAME* X509_get_subject_name(const X509*)
    int X509_NAME_get_index_by_NID(const X509_NAME*, int, int)
    X509_NAME_ENTRY* X509_NAME_get_entry(const X509_NAME*, int)
    ASN1_STRING* X509_NAME_ENTRY_get_data(const X509_NAME_ENTRY*)
    int ASN1_STRING_to_UTF8(unsigned char**, const ASN1_STRING*)
    int X509_NAME_print_ex(BIO*, const X509_NAME*, int, unsigned long)
    const ASN1_TIME* X509_get0_notAfter(const X509*)
    int X509_cmp_current_time(const ASN1_TIME*)
    int ASN1_TIME_diff(int*, int*, const ASN1_TIME*, const ASN1_TIME*)
    ASN1_TIME* ASN1_TIME_set(ASN1_TIME*, long)
    void ASN1_TIME_free(ASN1_TIME*)
    X509_LOOKUP* X509_STORE_add_lookup(X509_STORE*, void*)
    void* X509_LOOKUP_file()
    int X509_load_crl_file(X509_LOOKUP*, const char*, int)
    int X509_STORE_set_flags(X509_STORE*, unsigned long)
    const char* X509_verify_cert_error_string(long)
    long X509_V_OK
    unsigned long X509_V_FLAG_CRL_CHECK, XN_FLAG_RFC2253
    unsigned int X509_CHECK_FLAG_NO_WILDCARDS
    int NID_commonName

cdef extern from "<openssl/bio.h>" nogil:
    ctypedef struct BIO:
        pass
    BIO* BIO_new(void*)
    void* BIO_s_mem()
    long BIO_get_mem_data(BIO*, char**)
    int BIO_free(BIO*)

cdef extern from "<openssl/evp.h>" nogil:
    ctypedef struct EVP_CIPHER:
        pass
    ctypedef struct EVP_CIPHER_CTX:
        pass
    ctypedef struct EVP_MAC_CTX:
        pass
    ctypedef struct OSSL_PARAM:
        pass
    EVP_CIPHER* EVP_CIPHER_fetch(void*, const char*, const char*)
    int EVP_CipherInit_ex2(EVP_CIPHER_CTX*, const EVP_CIPHER*, const unsigned char*, const unsigned char*, int,
                           const OSSL_PARAM*)
    int EVP_MAC_CTX_set_params(EVP_MAC_CTX*, const OSSL_PARAM*)

cdef extern from "<openssl/params.h>" nogil:
    OSSL_PARAM OSSL_PARAM_construct_octet_string(const char*, void*, size_t)
    OSSL_PARAM OSSL_PARAM_construct_utf8_string(const char*, char*, size_t)
    OSSL_PARAM OSSL_PARAM_construct_end()

cdef extern from "<openssl/core_names.h>" nogil:
    const char* OSSL_MAC_PARAM_KEY
    const char* OSSL_MAC_PARAM_DIGEST

cdef extern from "<openssl/rand.h>" nogil:
    int RAND_bytes(unsigned char*, int)

cdef extern from "<openssl/crypto.h>" nogil:
    void OPENSSL_free(void*)

cdef extern from "<openssl/err.h>" nogil:
    void ERR_clear_error()
    unsigned long ERR_get_error()
    const char* ERR_reason_error_string(unsigned long)
