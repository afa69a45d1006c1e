// Package docs embeds the documents that programs quote, so that their text has one place. Start
// reading at Security.
package docs

import _ "embed"

// Security is the text of security.md.
//
//go:embed security.md
var Security string
