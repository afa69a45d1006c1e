// Package report draws a bench.Result for people: one HTML file that needs
// nothing else (no script, no font, no request) and a short Markdown table.
//
// It promises to show every case and every gate of the result, the missed ones
// first, what the platform's figures are good for in large letters, and the spread
// beside each median. Charts are inline SVG with coordinates in percent, so that
// they follow the width of the page and the reader's choice of light or dark.
//
// Everything that came over a wire is shown as a dump of its bytes, escaped by
// html/template: a packet cannot put markup into the page.
//
// Start reading at Report.
package report
