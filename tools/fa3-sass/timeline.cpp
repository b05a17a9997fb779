#include "timeline.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <set>

#include "reports.h"
#include "text.h"

namespace sass {
namespace {

constexpr int left = 92, right = 52, lane_height = 40, group_height = 20, panel_head = 66, panel_foot = 84;
constexpr const char* lane_names[] = {"tensor", "MUFU", "FMA, ALU", "memory", "sync"};
constexpr int lanes = 5;

struct Hue {
  const char* name;
  const char* colour;
};

const char* gemm_colour(const std::string& name) {
  static const std::map<std::string, const char*> colours = {{"QK", "#2563eb"}, {"S", "#2563eb"},  {"PV", "#ea580c"},
                                                             {"dP", "#7c3aed"}, {"dV", "#ea580c"}, {"dK", "#0d9488"},
                                                             {"dQ", "#be123c"}};
  const auto found = colours.find(name);
  return found == colours.end() ? "#475569" : found->second;
}

Hue hue_of(const Kernel& kernel, const Turn& turn, int position) {
  const Kind kind = turn.kinds[static_cast<size_t>(position)];
  switch (kind) {
    case Kind::wgmma: {
      const Gemm* gemm = turn.gemm_at(position);
      return {"", gemm_colour(gemm ? gemm->name : "")};
    }
    case Kind::exp: return {"exp2", "#d99a00"};
    case Kind::special: return {"other MUFU", "#8a6d1a"};
    case Kind::maximum: return {"max", "#0f766e"};
    case Kind::multiply_add: return {"scale (FFMA)", "#16a34a"};
    case Kind::add: return {"sum (FADD)", "#84cc16"};
    case Kind::convert: return {"convert (F2FP)", "#db2777"};
    case Kind::mask: return {"MASK", "#000000"};
    case Kind::shuffle: return {"shuffle, vote", "#0891b2"};
    case Kind::multiply: {
      const Registers written =
          destination(kernel.listing.code[static_cast<size_t>(turn.code[static_cast<size_t>(position)])]);
      for (const Gemm& gemm : turn.gemms)
        if (!gemm.zero && gemm.accumulator.overlaps(written)) return {"rescale (FMUL)", "#dc2626"};
      return {"multiply", "#65a30d"};
    }
    case Kind::local_memory: return {"SPILL", "#dc2626"};
    case Kind::tma_load:
    case Kind::tma_store: return {"TMA", "#9333ea"};
    case Kind::shared_memory: return {"shared memory", "#0284c7"};
    case Kind::global_memory: return {"global memory", "#0c4a6e"};
    case Kind::wait: return {"wgmma wait", "#b91c1c"};
    case Kind::arrive: return {"wgmma fence", "#f87171"};
    case Kind::mbarrier_wait: return {"mbarrier wait", "#6d28d9"};
    case Kind::mbarrier_arrive: return {"mbarrier arrive", "#a78bfa"};
    case Kind::barrier:
    case Kind::fence: return {"barrier, fence", "#334155"};
    case Kind::branch: return {"control", "#94a3b8"};
    default: return {"integer, uniform, move", "#cbd5e1"};
  }
}

std::string escape(std::string_view text) {
  std::string result;
  for (char c : text) {
    if (c == '<') result += "&lt;";
    else if (c == '>') result += "&gt;";
    else if (c == '&') result += "&amp;";
    else if (c == '"') result += "&quot;";
    else if (static_cast<unsigned char>(c) >= 0x20 && static_cast<unsigned char>(c) < 0x7f) result += c;
  }
  return result;
}

struct Drawing {
  std::string body;

  void rectangle(double x, double y, double width, double height, const std::string& style,
                 const std::string& tip = "") {
    char geometry[160];
    std::snprintf(geometry, sizeof geometry, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" ", x, y, width,
                  height);
    body += geometry + style + (tip.empty() ? "/>\n" : "><title>" + escape(tip) + "</title></rect>\n");
  }
  void line(double x1, double y1, double x2, double y2, const char* style) {
    char text[220];
    std::snprintf(text, sizeof text, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x1, y1, x2, y2,
                  style);
    body += text;
  }
  void text(double x, double y, const std::string& words, const char* style = "") {
    char place[120];
    std::snprintf(place, sizeof place, "<text x=\"%.1f\" y=\"%.1f\" ", x, y);
    body += place + std::string(style) + ">" + escape(words) + "</text>\n";
  }
};

struct Panel {
  const Kernel& kernel;
  const WgmmaLoop& loop;
  Drawing& out;
  double top, slot;

  const Turn& turn() const { return loop.turn; }
  double x(double position) const { return left + position * slot; }
  double groups_top() const { return top + panel_head; }
  double lanes_top() const { return groups_top() + static_cast<double>(turn().groups.size()) * group_height + 14; }
  double bottom() const { return lanes_top() + lanes * lane_height; }
  double height() const { return bottom() + panel_foot - top; }
  const Instruction& at(int position) const {
    return kernel.listing.code[static_cast<size_t>(turn().code[static_cast<size_t>(position)])];
  }

  // A span that may run over the end of the turn is drawn in two pieces.
  void span(double from, double to, const std::function<void(double, double)>& draw) const {
    const double size = turn().size();
    draw(from, std::min(to, size));
    if (to > size) draw(0, std::min(to - size, size));
  }

  void draw_head() {
    out.text(left, top + 22,
             std::string(loop.hot ? "hot loop " : "boundary loop ") + loop.role + ": " + std::to_string(turn().size()) +
                 " instructions a turn, " + loop.gemms,
             "class=\"title\"");
    std::string summary;
    const auto share = [&](const char* words, const char* figure, const char* counted) {
      const Figure* part = find(loop.figures, figure);
      const Figure* all = find(loop.figures, counted);
      if (part && all)
        summary += (summary.empty() ? "" : "; ") + std::string(words) + number(part->value * all->value) + " of " +
                   all->shown();
    };
    share("exp2 in the shadow of a committed group: ", "exps_in_flight", "exps");
    share("of an issued one: ", "exps_overlapped", "exps");
    share("conversions: ", "conversions_overlapped", "conversions");
    for (const char* figure : {"serialised", "touches", "masks", "local", "rescales"})
      if (const Figure* f = find(loop.figures, figure); f && f->value > 0)
        summary += (summary.empty() ? "" : "; ") + f->shown() + " " + figure;
    out.text(left, top + 42, summary);
    out.text(left, top + 58,
             "program order, left to right; light: WGMMAs being issued, dark: committed and in flight, up to the wait "
             "that covers them",
             "class=\"small\"");
  }

  void draw_groups() {
    for (size_t g = 0; g < turn().groups.size(); ++g) {
      const Group& group = turn().groups[g];
      std::string name;
      for (int gemm : group.gemms) name += (name.empty() ? "" : "+") + turn().gemms[static_cast<size_t>(gemm)].name;
      const std::string colour = gemm_colour(turn().gemms[static_cast<size_t>(group.gemms.front())].name);
      const double y = groups_top() + static_cast<double>(g) * group_height;
      const double end = group.wait >= 0 ? group.wait : group.first + turn().size();
      const double commit = group.commit >= 0 ? group.commit : end;
      const auto band = [&](const char* band_opacity, const char* bar_opacity) {
        return [&, band_opacity, bar_opacity](double from, double to) {
          out.rectangle(x(from), y, (to - from) * slot, group_height - 4,
                        "fill=\"" + colour + "\" opacity=\"" + bar_opacity + "\" rx=\"2\"");
          out.rectangle(x(from), lanes_top(), (to - from) * slot, bottom() - lanes_top(),
                        "fill=\"" + colour + "\" opacity=\"" + band_opacity + "\"");
        };
      };
      span(group.first, commit + 1, band("0.06", "0.35"));
      if (end > commit + 1) span(commit + 1, end, band("0.15", "0.85"));
      out.text(left - 8, y + 12, name, "class=\"lane\"");
      const std::string words =
          group.wait < 0 ? "never waited for"
                         : std::to_string(static_cast<int>(end - commit) - 1) + " instructions in its shadow";
      const double width = static_cast<double>(words.size()) * 6.2;
      const double middle = std::min((commit + 1 + end) / 2, static_cast<double>(turn().size()) - width / slot / 2);
      if ((std::min<double>(end, turn().size()) - commit - 1) * slot > width)
        out.text(x(middle), y + 12, words, "class=\"inside\"");
    }
  }

  void draw_lanes() {
    for (int l = 0; l < lanes; ++l) {
      const double y = lanes_top() + l * lane_height;
      out.line(left, y, x(turn().size()), y, "stroke=\"#94a3b8\" stroke-width=\"0.6\"");
      out.text(left - 8, y + lane_height / 2.0 + 4, lane_names[l], "class=\"lane\"");
    }
    out.line(left, bottom(), x(turn().size()), bottom(), "stroke=\"#94a3b8\" stroke-width=\"0.6\"");
    for (int p = 0; p < turn().size(); ++p) {
      const Hue hue = hue_of(kernel, turn(), p);
      char address[16];
      std::snprintf(address, sizeof address, "%04x  ", static_cast<unsigned>(at(p).address));
      const int lane = static_cast<int>(lane_of(turn().kinds[static_cast<size_t>(p)]));
      const bool wgmma = turn().kinds[static_cast<size_t>(p)] == Kind::wgmma;
      const double inset = wgmma ? 3 : 7;
      out.rectangle(x(p) + 0.3, lanes_top() + lane * lane_height + inset, std::max(slot - 0.6, 1.0),
                    lane_height - 2 * inset, std::string("fill=\"") + hue.colour + "\"", address + at(p).text);
    }
  }

  void draw_waits() {
    double taken = -1e9, taken_below = -1e9;  // labels must not run into each other
    for (int p = 0; p < turn().size(); ++p) {
      const Kind kind = turn().kinds[static_cast<size_t>(p)];
      const double middle = x(p + 0.5);
      if (kind == Kind::wait) {
        out.line(middle, groups_top() - 4, middle, bottom() + 6, "stroke=\"#b91c1c\" stroke-width=\"1.6\"");
        if (middle > taken)
          out.text(middle + 3, bottom() + 16, "wait<" + std::to_string(wait_count(at(p))) + ">", "class=\"wait\"");
        taken = middle + 48;
      } else if (kind == Kind::mbarrier_wait || kind == Kind::barrier) {
        out.line(middle, lanes_top(), middle, bottom() + 18,
                 "stroke=\"#6d28d9\" stroke-width=\"1.2\" stroke-dasharray=\"4 3\"");
        if (middle > taken_below)
          out.text(middle + 3, bottom() + 29, kind == Kind::barrier ? "barrier" : "mbarrier", "class=\"mbarrier\"");
        taken_below = middle + 52;
      }
    }
    for (int p = 0; p <= turn().size(); p += 20) {
      out.line(x(p), bottom(), x(p), bottom() + 4, "stroke=\"#64748b\"");
      if (p % 100 == 0) out.text(x(p), bottom() + 42, std::to_string(p), "class=\"small\" text-anchor=\"middle\"");
    }
  }

  void draw_legend() {
    std::vector<Hue> hues;
    for (int p = 0; p < turn().size(); ++p) {
      const Hue hue = hue_of(kernel, turn(), p);
      if (*hue.name &&
          std::none_of(hues.begin(), hues.end(), [&](const Hue& h) { return std::string(h.name) == hue.name; }))
        hues.push_back(hue);
    }
    std::vector<std::string> gemms;
    for (const Gemm& gemm : turn().gemms)
      if (std::find(gemms.begin(), gemms.end(), gemm.name) == gemms.end()) gemms.push_back(gemm.name);
    double at = left, y = bottom() + 60;
    const auto entry = [&](const std::string& name, const char* colour) {
      const double width = 22 + static_cast<double>(name.size()) * 6.4;
      if (at + width > x(turn().size()) && at > left) at = left, y += 16;
      out.rectangle(at, y - 9, 10, 10, std::string("fill=\"") + colour + "\"");
      out.text(at + 14, y, name, "class=\"small\"");
      at += width + 6;
    };
    for (const std::string& gemm : gemms) entry(gemm, gemm_colour(gemm));
    for (const Hue& hue : hues) entry(hue.name, hue.colour);
  }

  void draw() {
    draw_head();
    draw_groups();
    draw_lanes();
    draw_waits();
    draw_legend();
  }
};

}  // namespace

std::string timeline_svg(const Kernel& kernel, bool all) {
  Drawing drawing;
  double top = 34, width = 640;
  for (const WgmmaLoop& loop : kernel.loops) {
    if (!loop.hot && !all) continue;
    const double slot = std::clamp(1100.0 / loop.turn.size(), 3.0, 12.0);
    Panel panel{kernel, loop, drawing, top, slot};
    panel.draw();
    width = std::max(width, panel.x(loop.turn.size()) + right);
    top += panel.height() + 24;
  }
  if (kernel.loops.empty()) drawing.text(left, top + 20, "no loop with WGMMAs");
  char head[200];
  std::snprintf(head, sizeof head,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\">\n",
                width, top + 20, width, top + 20);
  return std::string(head) +
         "<style>text{font:11px sans-serif;fill:#1e293b}.title{font-size:14px;font-weight:bold}.name{font:bold 15px "
         "monospace}"
         ".small{font-size:10px;fill:#475569}.lane{text-anchor:end;font-weight:bold}.inside{text-anchor:middle;fill:#"
         "fff}"
         ".wait{fill:#b91c1c;font-weight:bold}.mbarrier{fill:#6d28d9}</style>\n"
         "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n<text x=\"16\" y=\"24\" class=\"name\">" +
         escape(kernel.readable) + "</text>\n" + drawing.body + "</svg>\n";
}

}  // namespace sass
