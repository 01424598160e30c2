// Sizes in words, and the limit on them.
#include "cli/ship/ship_offer.h"

#include "tests/support/catch.h"

namespace hvd {

TEST_CASE("ship_offer: sizes read well") {
  CHECK(size_text(0) == "0 bytes");
  CHECK(size_text(1) == "1 byte");
  CHECK(size_text(999) == "999 bytes");
  CHECK(size_text(1024) == "1.0 kB");
  CHECK(size_text(300u << 10) == "307 kB");
  CHECK(size_text(1'540'000) == "1.5 MB");
  CHECK(size_text(812'400'000) == "812 MB");
  CHECK(size_text(2'147'483'648) == "2.1 GB");
}

TEST_CASE("ship_offer: more than the limit is refused with the largest named") {
  const std::vector<OfferedFile> files = {
      {"/a", 10}, {"/b", 3'000'000'000}, {"/c", 20'000'000}, {"/d", 30'000'000}};
  CHECK(limit_objection(files, 3'050'000'010).empty());
  CHECK(limit_objection(files, 3'050'000'009) ==
        "what is to be shipped comes to 3.1 GB, and --ship-limit allows 3.1 GB; the largest: "
        "\"/b\" (3.0 GB), \"/d\" (30 MB), \"/c\" (20 MB); leave some out, or raise it by "
        "--ship-limit 3G");
  CHECK(limit_objection({}, 0).empty());
}

TEST_CASE("ship_offer: a dry run says how much would be shipped") {
  ShipOffer offer;
  offer.files = {{"/a", 10}, {"/b", 3'000'000}};
  offer.named = 3;
  offer.libraries_from = 2;
  CHECK(plan_text(offer) == "ships: 3 files, 3.0 MB\n");
  offer.named = offer.libraries_from = 1;
  CHECK(plan_text(offer) ==
        "ships: 1 file, 10 bytes; and where a host lacks them: 1 library, 3.0 MB\n");
}

TEST_CASE("ship_offer: what is left out is named, some of it") {
  ShipOffer offer;
  CHECK(left_out_text(offer).empty());
  offer.left_out = {"/a", "/b"};
  CHECK(left_out_text(offer) ==
        "--ship leaves out what is neither a file nor a folder: \"/a\", \"/b\"");
  offer.left_out = {"/a", "/b", "/c", "/d", "/e"};
  CHECK(left_out_text(offer).ends_with("folder: \"/a\", \"/b\", \"/c\" and 2 more"));
}

}  // namespace hvd
