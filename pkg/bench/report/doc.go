// Package report draws a bench.Result for people: one HTML file that needs
// nothing else (no script, no font, no request) and a short Markdown table.
//
// It promises to show every case, with the spread beside each median, and every gate, missed gates
// first. The page states in large letters which figures of the platform are meaningful. Charts are
// inline SVG with coordinates in percent, so they follow the width of the page. They also follow
// the reader's choice of light or dark.
//
// Captured packets are shown as dumps of their bytes, escaped by html/template, so a packet cannot
// put markup into the page.
//
// Start reading at Report.
package report
