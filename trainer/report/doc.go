// Package report turns a run folder into pages: report.html (one self-contained file: no script, no network, readable
// on a phone) and the live pages of `harness-s view`.
//
// Charts are written as SVG here rather than by a plotting library, because the pages follow the reader's light or dark
// theme and scale their text on small screens, which pre-rendered plots do not.
package report
