#include "listings.h"

#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include "kernels/analyse.h"
#include "kernels/source.h"

namespace listings {

std::string text(const std::string& name, const Lines& lines) {
  std::string result = "\t.section\t.text." + name + ",\"ax\",@progbits\n" + name + ":\n.text." + name + ":\n";
  int address = 0;
  for (const std::string& line : lines) {
    if (line[0] == '.' || line[0] == '$') {
      result += line + ":\n";
      continue;
    }
    char place[32];
    std::snprintf(place, sizeof place, "        /*%04x*/   ", static_cast<unsigned>(address));
    result += place + line + " ;\n";
    address += 16;
  }
  return result;
}

Lines good() {
  Lines lines = {
      "LDC R1, c[0x0][0x28]",
      "USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0x70",
      ".L_loop",
      "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4+0x100], R0",
      "@!P0 BRA `(.L_spin)",
      ".L_ready",
      "WARPGROUP.ARRIVE",
      "HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8], RZ, !UPT",
      "HGMMA.64x16x16.F32.BF16 R24, gdesc[UR12], R24, gsb0",
      "HGMMA.64x32x16.F32.BF16 R40, R60, gdesc[UR16].tnspB, R40, gsb0",
      "WARPGROUP.DEPBAR.LE gsb0, 0x1",
  };
  const auto each = [&](int count, auto line) {
    for (int i = 0; i < count; ++i) lines.push_back(line(i));
  };
  const auto r = [](int n) { return "R" + std::to_string(n); };
  each(8, [&](int i) { return "FFMA " + r(24 + i) + ", " + r(24 + i) + ", UR10, -R3.reuse"; });
  each(8, [&](int i) { return "MUFU.EX2 " + r(24 + i) + ", " + r(24 + i); });
  each(7, [&](int i) { return "FADD R4, R4, " + r(25 + i); });
  lines.insert(lines.end(), {"FSETP.GT.AND P1, PT, R4, 1048576, PT", "@P1 BRA `(.L_rare)", ".L_joined",
                             "WARPGROUP.DEPBAR.LE gsb0, 0x0"});
  each(4, [&](int i) { return "F2FP.BF16.F32.PACK_AB " + r(60 + i) + ", " + r(25 + 2 * i) + ", " + r(24 + 2 * i); });
  lines.insert(lines.end(),
               {"@P2 BRA `(.L_loop)", "EXIT", ".L_rare", "FMNMX R3, R3, R4, !PT", "MUFU.EX2 R5, R3", "FMUL R4, R4, R5",
                "BRA `(.L_joined)", ".L_spin", "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4+0x100], R0",
                "@!P0 BRA `(.L_spin)", "BRA `(.L_ready)", ".L_end", "BRA `(.L_end)"});
  return lines;
}

Lines eight_bits() {
  Lines lines = good();
  for (std::string& line : lines)
    if (line.rfind("F2FP", 0) == 0) line.replace(0, line.find(' '), "F2FP.SATFINITE.E4M3.F32.PACK_AB_MERGE_C");
  lines = replaced(lines, "HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8]",
                   {"QGMMA.64x16x32.F32.E4M3.E4M3 R24, R56, gdesc[UR8], RZ, !UPT"});
  lines = replaced(lines, "HGMMA.64x16x16.F32.BF16 R24, gdesc[UR12]",
                   {"QGMMA.64x16x32.F32.E4M3.E4M3 R24, gdesc[UR12], R24, gsb0"});
  lines = replaced(lines, "HGMMA.64x32x16", {"QGMMA.64x32x32.F32.E4M3.E4M3 R40, R60, gdesc[UR16], R40, gsb0"});
  return replaced(lines, "EXIT",
                  {".L_block", "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4+0x200], R0", ".L_keys",
                   "LDSM.16.MT88.4 R4, [R3]", "LDSM.16.MT88.4 R8, [R3+0x10]", "PRMT R12, R4, 0x6420, R5",
                   "PRMT R13, R4, 0x7531, R5", "PRMT R14, R6, 0x6420, R7", "PRMT R15, R6, 0x7531, R7",
                   "STSM.16.M88.4 [R2], R12", "IADD3 R3, R3, 0x800, RZ", "@P1 BRA `(.L_keys)", "FENCE.VIEW.ASYNC.S",
                   "@P0 BRA `(.L_block)", "EXIT"});
}

Lines backward() {
  return {".L_0",
          "WARPGROUP.ARRIVE",
          "HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8], RZ, !UPT, gsb0",
          "WARPGROUP.DEPBAR.LE gsb0, 0x0",
          "FFMA R24, R24, UR10, -R3",
          "MUFU.EX2 R24, R24",
          "WARPGROUP.ARRIVE",
          "HGMMA.64x16x16.F32.BF16 R32, gdesc[UR12], RZ, !UPT, gsb0",
          "F2FP.BF16.F32.PACK_AB R60, R24, R24",
          "HGMMA.64x32x16.F32.BF16 R80, R60, gdesc[UR16].tnspB, R80, gsb0",
          "WARPGROUP.DEPBAR.LE gsb0, 0x1",
          "FADD R33, R32, -R4",
          "FMUL R33, R24, R33",
          "F2FP.BF16.F32.PACK_AB R64, R33, R33",
          "WARPGROUP.ARRIVE",
          "HGMMA.64x32x16.F32.BF16 R100, R64, gdesc[UR16].tnspB, R100, gsb0",
          "WARPGROUP.DEPBAR.LE gsb0, 0x0",
          "@P0 BRA `(.L_0)",
          "EXIT"};
}

Lines with_producer() {
  Lines lines = {"S2R R0, SR_TID.X", "ISETP.NE.AND P4, PT, R0, RZ, PT", "@P4 BRA `(.L_ready_all)",
                 "SYNCS.EXCH.64 URZ, [UR4+0x100], UR6", "NOP", ".L_ready_all", "BAR.SYNC 0x0, 0x100",
                 "LOP3.LUT R2, R0, 0x1f, RZ, 0xc0, !PT", "ISETP.NE.AND P3, PT, R2, RZ, PT",
                 "ISETP.GE.AND P5, PT, R0, 0x80, PT", "@P5 BRA `(.L_producer)"};
  const Lines loop = replaced(replaced(good(), "LDC R1", {}), "@P2 BRA",
                              {"@!P3 SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR4+0x108], RZ", "@P2 BRA `(.L_loop)",
                               "STSM.16.M88.4 [R5], R24", "FENCE.VIEW.ASYNC.S", "WARPSYNC 0xffffffff",
                               "@P3 BRA `(.L_stored)", "UTMASTG.4D [UR8], [UR14]", ".L_stored",
                               "SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR4+0x118], RZ"});
  lines.insert(lines.end(), loop.begin(), loop.end());
  const Lines producer = {".L_producer", "USETMAXREG.DEALLOC.CTAPOOL 0x20", "@P3 EXIT", "MOV R6, RZ", "MOV R7, 0x4000",
                          ".L_more", "SHF.R.U32.HI R4, RZ, 0x2, R6", "LOP3.LUT R4, R4, 0x1, RZ, 0xc, !PT",
                          "SHF.L.U32 R4, R4, 0x1f, RZ", "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4+0x108], R4",
                          "@!P0 BRA `(.L_full)", ".L_free", "SEL R8, R7, 0x2000, P1",
                          "SYNCS.ARRIVE.TRANS64 RZ, [UR4+0x100], R8", "UTMALDG.4D [UR8], [UR6]",
                          "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4+0x118], RZ", "@!P0 BRA `(.L_held)", ".L_given",
                          "IADD3 R6, R6, 0x1, RZ", "@P2 BRA `(.L_more)", "EXIT", ".L_full",
                          "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4+0x108], R4", "@!P0 BRA `(.L_full)",
                          "BRA `(.L_free)", ".L_held", "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4+0x118], RZ",
                          "@P0 BRA `(.L_given)", "BRA `(.L_held)", ".L_last", "BRA `(.L_last)"};
  lines.insert(lines.end(), producer.begin(), producer.end());
  return lines;
}

Lines replaced(Lines listing, const std::string& old, const Lines& lines) {
  const auto at =
      std::find_if(listing.begin(), listing.end(), [&](const std::string& line) { return line.rfind(old, 0) == 0; });
  if (at == listing.end()) throw std::logic_error("no line " + old);
  listing.insert(listing.erase(at), lines.begin(), lines.end());
  return listing;
}

std::vector<sass::Kernel> kernels_of(const std::string& file, const std::string& wanted) {
  const auto source = sass::open_source(file);
  return source->read(source->matching(wanted));
}

sass::Kernel kernel(const Lines& lines, const std::string& name) {
  sass::KernelRecord record;
  record.name = name;
  return sass::analyse(record, sass::parse(text(name, lines)).at(0));
}

const sass::WgmmaLoop& only_hot(const sass::Kernel& kernel) {
  const sass::WgmmaLoop* found = nullptr;
  for (const sass::WgmmaLoop& loop : kernel.loops) {
    if (!loop.hot) continue;
    if (found) throw std::logic_error("two hot loops");
    found = &loop;
  }
  if (!found) throw std::logic_error("no hot loop");
  return *found;
}

double value(const sass::Figures& figures, const std::string& name) {
  const sass::Figure* figure = sass::find(figures, name);
  if (!figure) throw std::logic_error("no figure " + name);
  return figure->value;
}

std::string words(const sass::Figures& figures, const std::string& name) {
  const sass::Figure* figure = sass::find(figures, name);
  if (!figure) throw std::logic_error("no figure " + name);
  return figure->text;
}

}  // namespace listings
