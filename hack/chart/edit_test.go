package chart

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

// Edits of several components become conditions, in the order of the components.
func TestTemplateHasTheEditsOfComponents(t *testing.T) {
	same, words := part{}.escape, strings.Fields
	base := words("a b c d")
	for name, tc := range map[string]struct {
		edits []string // the lines with a component; its condition is C and its place
		want  string
	}{
		"none":  {nil, "a|b|c|d"},
		"added": {[]string{"a b x c d"}, "a|b|{{- if C0 }}|x|{{- end }}|c|d"},
		"added at ends": {[]string{"x a b c d y"},
			"{{- if C0 }}|x|{{- end }}|a|b|c|d|{{- if C0 }}|y|{{- end }}"},
		"changed":    {[]string{"a x c d"}, "a|{{- if C0 }}|x|{{- else }}|b|{{- end }}|c|d"},
		"taken away": {[]string{"a c d"}, "a|{{- if not (C0) }}|b|{{- end }}|c|d"},
		"two at a place": {[]string{"a x b c d", "a y b c d"},
			"a|{{- if C0 }}|x|{{- end }}|{{- if C1 }}|y|{{- end }}|b|c|d"},
		"before a changed line": {[]string{"a x c d", "a y b c d"},
			"a|{{- if C1 }}|y|{{- end }}|{{- if C0 }}|x|{{- else }}|b|{{- end }}|c|d"},
		"after a changed line": {[]string{"a x c d", "a b y c d"},
			"a|{{- if C0 }}|x|{{- else }}|b|{{- end }}|{{- if C1 }}|y|{{- end }}|c|d"},
		"both change a line":   {[]string{"a x c d", "a y c d"}, "two components change line 2"},
		"added inside changes": {[]string{"a x y d", "a b z c d"}, "two components change line 3"},
	} {
		var edits []edit
		for i, is := range tc.edits {
			edits = append(edits, difference(base, words(is), []string{"C0", "C1"}[i], same)...)
		}
		out, err := merge(base, edits, same)
		got := strings.Join(out, "|")
		if err != nil {
			got = err.Error()
		}
		if got != tc.want && (err == nil || !strings.HasPrefix(got, tc.want)) {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}

	out, err := merge(base, difference(base, words("a x c d"), "", same), same)
	errtest.Must(t, err)
	if diff := cmp.Diff(words("a x c d"), out); diff != "" {
		t.Error(diff)
	}
	x := edit{from: 2, to: 2, when: "C", lines: []string{"x"}}
	_, err = merge([]string{"a", "", "b"}, []edit{x}, same)
	if err == nil || !strings.Contains(err.Error(), "blank line") {
		t.Errorf("a blank line before an action: %v", err)
	}
}

// Text that looks like an action of a template stays text. Values stand for the text of components.
func TestEscapedLines(t *testing.T) {
	p := part{values: map[string]string{"/var/lib/x": "{{ .Values.x }}"}}
	for line, want := range map[string]string{
		"a: '{{ $labels.instance }}'":       `a: '{{ "{{" }} $labels.instance }}'`,
		"path: /var/lib/x/y":                "path: {{ .Values.x }}/y",
		"- image: localhost/kubeveil:dev":   "- image: " + imageValues["localhost/kubeveil:dev"],
		"image: localhost/kubeveil-csi:dev": "image: " + imageValues["localhost/kubeveil-csi:dev"],
		"image: localhost/kubeveil:dev-1":   "image: localhost/kubeveil:dev-1",
	} {
		if got := p.escape(line); got != want {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
	}
}

func TestExamplesOfTheConfiguration(t *testing.T) {
	text := "  veild.yaml: ||    kubeadmConfig: x|    # nodeRanges: [a]|    # outside: [b]|" +
		"    # services: {c}|    # other: d"
	edits, err := exampleEdits(strings.Split(text, "|"))
	errtest.Must(t, err)
	if len(edits) != len(examples)+1 || edits[1].from != 3 ||
		edits[1].lines[0] != "    nodeRanges: {{ toJson .Values.nodeRanges }}" {
		t.Errorf("%+v", edits)
	}
	for _, bad := range []string{strings.Replace(text, "# outside: ", "# out: ", 1),
		strings.Replace(text, "# other: ", "# outside: ", 1)} {
		if _, err := exampleEdits(strings.Split(bad, "|")); err == nil ||
			!strings.Contains(err.Error(), `"# outside: "`) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// Hooks run in the order of the kustomization, and keep their weight with each component.
func TestHooksAreInOrder(t *testing.T) {
	const crd = "kind: CustomResourceDefinition\nmetadata:\n  name: a\n"
	const policy = "kind: ValidatingAdmissionPolicy\nmetadata:\n  annotations: {x: y}\n  name: b\n"
	const pod = "kind: Pod\nmetadata:\n  name: c\n  namespace: ns\n"
	h := hooks{}
	for range 2 {
		all, err := h.parse(strings.Join([]string{crd, policy, pod}, "---\n"))
		errtest.Must(t, err)
		text := strings.Join(all[1].lines, "\n")
		if len(all) != 3 || all[1].file != "validatingadmissionpolicy-b.yaml" ||
			!strings.Contains(text, "hook-weight: \"1\"\n    x: ") {
			t.Errorf("%+v", all)
		}
		if all[2].id != "Pod ns/c" || strings.Contains(strings.Join(all[2].lines, "\n"), "helm.sh") {
			t.Errorf("%+v", all[2])
		}
	}
	for _, bad := range []string{"kind: Pod\n", "metadata: {name: a}\n", "}"} {
		if _, err := h.parse(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}
