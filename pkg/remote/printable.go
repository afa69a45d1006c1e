package remote

import (
	"encoding/json"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Printable replaces control and format characters in text from a node, except newlines and tabs.
// The node may have been taken over, and such characters could control the terminal, or change the
// direction of other text.
func Printable(text string) string { return strings.Map(printable, text) }

func printable(r rune) rune {
	if r != '\n' && r != '\t' && unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) {
		return unicode.ReplacementChar
	}
	return r
}

// PrintableJSON is Printable for JSON text: it also replaces the characters that strings contain as
// escapes, such as \u001b. Fields and their order stay as they are.
func PrintableJSON(text string) string { return cleanJSON(text, `\n`) }

// DecodeAnswer decodes JSON from a node into v. The strings in v are safe to print, and contain no
// newlines.
func DecodeAnswer(data []byte, v any) error {
	return json.Unmarshal([]byte(cleanJSON(string(data), "; ")), v)
}

// cleanJSON is PrintableJSON, but replaces newlines in strings by newline.
func cleanJSON(text, newline string) string {
	text = Printable(text)
	var out strings.Builder
	for {
		before, rest, escaped := strings.Cut(text, `\`)
		out.WriteString(before)
		if !escaped {
			return out.String()
		}
		r, size := readEscape(rest)
		switch {
		case r == '\n':
			out.WriteString(newline)
		case printable(r) != r:
			out.WriteString(`\ufffd`)
		default:
			out.WriteString(`\` + rest[:size])
		}
		text = rest[size:]
	}
}

// readEscape returns the character of the JSON escape (RFC 8259 section 7) that follows a
// backslash, and the size of the escape without that backslash. It returns ' ' for an escape that
// is malformed or stands for itself.
func readEscape(text string) (r rune, size int) {
	switch first, size := utf8.DecodeRuneInString(text); first {
	case 'b', 'f', 'r':
		return '\b', size
	case 'n':
		return '\n', size
	case 'u':
	default:
		return ' ', size
	}

	unit, ok := readUnit(text[1:])
	if !ok {
		return ' ', 1
	}
	if low, is := strings.CutPrefix(text[5:], `\u`); is && utf16.IsSurrogate(unit) {
		second, ok := readUnit(low)
		if both := utf16.DecodeRune(unit, second); ok && both != unicode.ReplacementChar {
			return both, 11
		}
	}
	return unit, 5
}

// readUnit returns the UTF-16 code unit that text begins with as four hexadecimal digits.
func readUnit(text string) (unit rune, ok bool) {
	if len(text) < 4 {
		return 0, false
	}
	n, err := strconv.ParseUint(text[:4], 16, 16)
	return rune(n), err == nil
}
