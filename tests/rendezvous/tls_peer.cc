#include "tests/rendezvous/tls_peer.h"

#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <sys/time.h>

#include <memory>

#include "rendezvous/openssl_owner.h"
#include "tests/support/catch.h"

#if defined(__SANITIZE_ADDRESS__)
// OpenSSL has random generators for each thread; those of gRPC's threads, on which a connection is
// tried again, are not given back where the process ends first. A leak for each connection would
// show in what 1,000 of them cost (attack_test).
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions() {
  return "leak:CRYPTO_zalloc\n";
}
#endif

namespace hvd {
namespace {

using Context = OpensslOwner<SSL_CTX, SSL_CTX_free>;
using Tls = OpensslOwner<SSL, SSL_free>;
using Bio = OpensslOwner<BIO, BIO_free>;

void patient(int fd, Clock::duration patience) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(patience).count();
  const timeval limit{us / 1'000'000, us % 1'000'000};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

void use(SSL_CTX* context, const Credentials& credentials) {
  const Bio leaf(BIO_new_mem_buf(credentials.certificate.data(), -1));
  const Bio key(BIO_new_mem_buf(credentials.key.view().data(), int(credentials.key.view().size())));
  X509* certificate = PEM_read_bio_X509(leaf.get(), nullptr, nullptr, nullptr);
  EVP_PKEY* own = PEM_read_bio_PrivateKey(key.get(), nullptr, nullptr, nullptr);
  REQUIRE(SSL_CTX_use_certificate(context, certificate) == 1);
  REQUIRE(SSL_CTX_use_PrivateKey(context, own) == 1);
  X509_free(certificate);
  EVP_PKEY_free(own);
}

TlsOutcome talk(SSL_CTX* context, int fd, int (*shake)(SSL*)) {
  signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to who has closed
  const Tls tls(SSL_new(context));
  SSL_set_fd(tls.get(), fd);
  TlsOutcome outcome;
  if (shake(tls.get()) == 1) {
    outcome.version = SSL_get_version(tls.get());
    char frame[9];
    outcome.talked_to = SSL_read(tls.get(), frame, sizeof frame) > 0;
  }
  ERR_clear_error();
  return outcome;
}

int choose_h2(SSL*, const unsigned char** chosen, unsigned char* bytes, const unsigned char*,
              unsigned, void*) {
  *chosen = reinterpret_cast<const unsigned char*>("h2");
  *bytes = 2;
  return SSL_TLSEXT_ERR_OK;
}

}  // namespace

UniqueFd connect_plainly(const SocketAddress& address, Clock::duration patience,
                         const std::string& from) {
  UniqueFd fd(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(fd);
  patient(fd.get(), patience);
  if (!from.empty()) {
    const SocketAddress own = SocketAddress::of(from, 0);
    REQUIRE(bind(fd.get(), own.get(), own.size()) == 0);
  }
  REQUIRE(connect(fd.get(), address.get(), address.size()) == 0);
  return fd;
}

TlsOutcome connect_by_tls(const SocketAddress& address, const Credentials* credentials,
                          const std::string& from) {
  const Context context(SSL_CTX_new(TLS_client_method()));
  if (credentials) use(context.get(), *credentials);
  SSL_CTX_set_alpn_protos(context.get(), reinterpret_cast<const unsigned char*>("\x02h2"), 3);
  const UniqueFd fd = connect_plainly(address, std::chrono::seconds(10), from);
  return talk(context.get(), fd.get(), SSL_connect);
}

TlsOutcome answer_by_tls(int listener, const Credentials& credentials) {
  const Context context(SSL_CTX_new(TLS_server_method()));
  use(context.get(), credentials);
  SSL_CTX_set_alpn_select_cb(context.get(), choose_h2, nullptr);
  pollfd knock{listener, POLLIN, 0};
  REQUIRE(poll(&knock, 1, 20'000) == 1);
  const UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  REQUIRE(fd);
  patient(fd.get(), std::chrono::seconds(10));
  return talk(context.get(), fd.get(), SSL_accept);
}

}  // namespace hvd
