#include "rendezvous/credentials.h"

#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <charconv>

#include "rendezvous/openssl_owner.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

using Key = OpensslOwner<EVP_PKEY, EVP_PKEY_free>;
using Certificate = OpensslOwner<X509, X509_free>;
using Request = OpensslOwner<X509_REQ, X509_REQ_free>;
using Extension = OpensslOwner<X509_EXTENSION, X509_EXTENSION_free>;
using Bio = OpensslOwner<BIO, BIO_free>;
using Number = OpensslOwner<BIGNUM, BN_free>;

constexpr std::string_view kUriStart = "hvd://job/";
constexpr std::string_view kUriHost = "/host/";
constexpr size_t kJobBytesMax = 64;

// What OpenSSL refused, in its words; its queue of errors is empty afterwards.
void check(bool ok, const char* what) {
  if (ok) return;
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  const char* reason = code != 0 ? ERR_reason_error_string(code) : nullptr;
  throw Error(ErrorCode::kInternal,
              std::string("cannot ") + what + (reason ? std::string(": ") + reason : ""));
}

// No file of the machine's decides how keys are made: hvdrun is one file that runs anywhere.
void prepare() {
  static const int once = OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, nullptr);
  check(once == 1, "start OpenSSL");
}

Key make_key() {
  prepare();
  Key key(EVP_EC_gen("P-256"));
  check(key != nullptr, "make a key");
  return key;
}

bool is_job_name(std::string_view job) {
  const auto fits = [](unsigned char letter) {
    return std::isalnum(letter) || letter == '.' || letter == '-' || letter == '_';
  };
  return !job.empty() && job.size() <= kJobBytesMax && std::all_of(job.begin(), job.end(), fits);
}

void name(X509* certificate, const std::string& words) {
  X509_NAME* subject = X509_get_subject_name(certificate);
  check(X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8,
                                   reinterpret_cast<const unsigned char*>(words.data()),
                                   int(words.size()), -1, 0) == 1,
        "name a certificate");
}

void extend(X509* certificate, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, certificate, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  check(extension && X509_add_ext(certificate, extension.get(), -1) == 1, "extend a certificate");
}

Certificate new_certificate(EVP_PKEY* key, const Validity& validity) {
  Certificate made(X509_new());
  const Number serial(BN_new());
  check(made && serial && X509_set_version(made.get(), X509_VERSION_3) == 1 &&
            BN_rand(serial.get(), 127, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) == 1 &&
            BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(made.get())) != nullptr &&
            ASN1_TIME_set(X509_getm_notBefore(made.get()), WallClock::to_time_t(validity.from)) !=
                nullptr &&
            ASN1_TIME_set(X509_getm_notAfter(made.get()), WallClock::to_time_t(validity.to)) !=
                nullptr &&
            X509_set_pubkey(made.get(), key) == 1,
        "make a certificate");
  return made;
}

void sign_by(X509* certificate, X509* issuer, EVP_PKEY* key) {
  check(X509_set_issuer_name(certificate, X509_get_subject_name(issuer)) == 1 &&
            X509_sign(certificate, key, EVP_sha256()) > 0,
        "sign a certificate");
}

std::string text_of(BIO* bio) {
  char* bytes = nullptr;
  const long count = BIO_get_mem_data(bio, &bytes);
  return {bytes, size_t(count)};
}

std::string pem_of(X509* certificate) {
  const Bio bio(BIO_new(BIO_s_mem()));
  check(bio && PEM_write_bio_X509(bio.get(), certificate) == 1, "write a certificate");
  return text_of(bio.get());
}

Secret pem_of(EVP_PKEY* key) {
  const Bio bio(BIO_new(BIO_s_secmem()));  // wiped when it is freed
  check(bio && PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) == 1,
        "write a key");
  char* bytes = nullptr;
  const long count = BIO_get_mem_data(bio.get(), &bytes);
  return Secret({bytes, size_t(count)});
}

Certificate read_certificate(const std::string& pem, const char* whose) {
  const Bio bio(BIO_new_mem_buf(pem.data(), int(std::min(pem.size(), kCertificateBytesMax))));
  check(bio != nullptr, "read a certificate");
  Certificate read(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  if (!read)
    throw Error(ErrorCode::kInvalidArgument,
                std::string("what hvdrun sent as ") + whose + " is no certificate");
  return read;
}

// One P-256 key and its own signature, whatever else is written there.
Request read_request(std::string_view bytes) {
  const auto refuse = [](const char* why) {
    ERR_clear_error();
    throw Error(ErrorCode::kInvalidArgument, std::string("an agent's request for a certificate ") +
                                                 why + "; is it an agent of this version?");
  };
  if (bytes.size() > kRequestBytesMax) refuse("is too long");
  const auto* at = reinterpret_cast<const unsigned char*>(bytes.data());
  const unsigned char* const end = at + bytes.size();
  Request request(d2i_X509_REQ(nullptr, &at, long(bytes.size())));
  if (!request || at != end) refuse("cannot be read");
  EVP_PKEY* key = X509_REQ_get0_pubkey(request.get());
  char group[32] = "";
  if (!key || EVP_PKEY_get_group_name(key, group, sizeof group, nullptr) != 1 ||
      std::string_view(group) != "prime256v1")
    refuse("holds no key of the right kind");
  if (X509_REQ_verify(request.get(), key) != 1) refuse("is not signed by its own key");
  return request;
}

}  // namespace

std::string AgentIdentity::uri() const {
  return std::string(kUriStart) + job + std::string(kUriHost) + std::to_string(host);
}

std::optional<AgentIdentity> AgentIdentity::parse(std::string_view uri) {
  if (!uri.starts_with(kUriStart)) return {};
  uri.remove_prefix(kUriStart.size());
  const size_t slash = uri.find('/');
  if (slash == uri.npos || !uri.substr(slash).starts_with(kUriHost)) return {};
  AgentIdentity identity{std::string(uri.substr(0, slash))};
  const std::string_view host = uri.substr(slash + kUriHost.size());
  const auto [end, error] = std::from_chars(host.data(), host.data() + host.size(), identity.host);
  // Written back, so that no second spelling of a host passes.
  if (error != std::errc() || end != host.data() + host.size() || identity.host < 0 ||
      std::to_string(identity.host) != host || !is_job_name(identity.job))
    return {};
  return identity;
}

Validity Validity::since(WallClock::time_point now) {
  return {now - kClockMargin, now + kCertificateLife};
}

struct JobAuthority::Impl {
  std::string job;
  Validity validity;
  Key key = make_key();
  Certificate certificate;
  std::string pem;

  std::string sign(EVP_PKEY* whose, const std::string& called, const char* use,
                   const std::string& names, const Validity& valid) const {
    const Certificate leaf = new_certificate(whose, valid);
    name(leaf.get(), called);
    extend(leaf.get(), NID_basic_constraints, "critical,CA:FALSE");
    extend(leaf.get(), NID_key_usage, "critical,digitalSignature");
    extend(leaf.get(), NID_ext_key_usage, use);
    extend(leaf.get(), NID_subject_alt_name, names);
    sign_by(leaf.get(), certificate.get(), key.get());
    return pem_of(leaf.get());
  }
};

JobAuthority::JobAuthority(std::string job, const Validity& validity) {
  if (!is_job_name(job))
    throw Error(ErrorCode::kInvalidArgument, "no name for a job: \"" + job + "\"");
  impl_ = std::make_unique<Impl>(std::move(job), validity);
  X509* made = (impl_->certificate = new_certificate(impl_->key.get(), validity)).get();
  name(made, "hvdrun's authority");
  extend(made, NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  extend(made, NID_key_usage, "critical,keyCertSign");
  sign_by(made, made, impl_->key.get());
  impl_->pem = pem_of(made);
}

JobAuthority::~JobAuthority() = default;
JobAuthority::JobAuthority(JobAuthority&&) noexcept = default;

const std::string& JobAuthority::certificate() const { return impl_->pem; }

Credentials JobAuthority::launcher() const {
  const Key key = make_key();
  std::string leaf = impl_->sign(key.get(), kLauncherName, "critical,serverAuth",
                                 std::string("DNS:") + kLauncherName, impl_->validity);
  return {impl_->pem, std::move(leaf), pem_of(key.get())};
}

std::string JobAuthority::sign(std::string_view request, int host) const {
  return sign(request, {impl_->job, host}, impl_->validity);
}

std::string JobAuthority::sign(std::string_view request, const AgentIdentity& whom,
                               const Validity& validity) const {
  HVD_CHECK(is_job_name(whom.job) && whom.host >= 0, "an agent's name has to be one");
  const Request read = read_request(request);
  return impl_->sign(X509_REQ_get0_pubkey(read.get()), "agent " + std::to_string(whom.host),
                     "critical,clientAuth", "URI:" + whom.uri(), validity);
}

struct AgentKey::Impl {
  Key key = make_key();
};

AgentKey::AgentKey() : impl_(std::make_unique<Impl>()) {}
AgentKey::~AgentKey() = default;

std::string AgentKey::request() const {
  const Request request(X509_REQ_new());
  check(request && X509_REQ_set_version(request.get(), X509_REQ_VERSION_1) == 1 &&
            X509_REQ_set_pubkey(request.get(), impl_->key.get()) == 1 &&
            X509_REQ_sign(request.get(), impl_->key.get(), EVP_sha256()) > 0,
        "ask for a certificate");
  unsigned char* bytes = nullptr;
  const int count = i2d_X509_REQ(request.get(), &bytes);
  check(count > 0, "write a request");
  std::string out(reinterpret_cast<char*>(bytes), size_t(count));
  OPENSSL_free(bytes);
  return out;
}

Credentials AgentKey::with(std::string authority, std::string certificate) const {
  const Certificate issuer = read_certificate(authority, "its authority");
  const Certificate leaf = read_certificate(certificate, "the agent's certificate");
  const bool fits = X509_verify(leaf.get(), X509_get0_pubkey(issuer.get())) == 1 &&
                    X509_check_private_key(leaf.get(), impl_->key.get()) == 1;
  ERR_clear_error();
  if (!fits)
    throw Error(ErrorCode::kInvalidArgument,
                "the certificate that hvdrun sent is not for this agent's key");
  return {std::move(authority), std::move(certificate), pem_of(impl_->key.get())};
}

WallClock::time_point clock_of(int64_t seconds) {
  constexpr int64_t kMost = 4'000'000'000;  // in 2096; half of what the type can hold
  return WallClock::time_point(std::chrono::seconds(std::clamp(seconds, -kMost, kMost)));
}

std::string clock_objection(WallClock::time_point launcher, WallClock::time_point here) {
  using namespace std::chrono;
  const bool behind = here + kClockMargin < launcher;
  if (!behind && here <= launcher + kCertificateLife) return {};
  const auto off = duration_cast<seconds>(behind ? launcher - here : here - launcher).count();
  const std::string how_much =
      behind ? std::to_string(off / 60) + " min " + std::to_string(off % 60) + " s behind"
             : std::to_string(off / seconds(days(1)).count()) + " days ahead of";
  const std::string allowed =
      behind
          ? "allow " + std::to_string(kClockMargin.count()) + " min"
          : "end after " + std::to_string(duration_cast<days>(kCertificateLife).count()) + " days";
  return "the clock of this host is " + how_much + " hvdrun's, and the job's certificates " +
         allowed + "; set it (chronyc makestep) and try again";
}

}  // namespace hvd
