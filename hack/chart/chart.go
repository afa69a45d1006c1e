package chart

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"text/template"
)

// Release is what a chart is for.
type Release struct {
	// Version is the version of Kubeveil, such as v0.1.0.
	Version string
	// Image is the image kubeveil, and CSI the image kubeveil-csi.
	Image, CSI Image
}

// Image is an image by its name without a tag, and the digest of its index.
type Image struct {
	Name, Digest string
}

// Name is the name of the chart.
const Name = "kubeveil"

// Number returns the version as a chart has it, without the letter v.
func (r Release) Number() string { return strings.TrimPrefix(r.Version, "v") }

//go:embed all:files
var files embed.FS

// Files returns the files of the chart by their paths in it.
func Files(ctx context.Context, r Release, k Kustomize) (map[string]string, error) {
	out := map[string]string{}
	for _, name := range []string{"Chart.yaml", "values.yaml", "values.schema.json",
		"templates/_image.tpl", "templates/NOTES.txt"} {
		text, err := files.ReadFile("files/" + strings.TrimPrefix(name, "templates/"))
		if err != nil {
			return nil, err
		}
		// Helm has other delimiters.
		t, err := template.New(name).Delims("<<", ">>").Parse(string(text))
		if err != nil {
			return nil, err
		}
		var b bytes.Buffer
		if err := t.Execute(&b, r); err != nil {
			return nil, err
		}
		out[name] = b.String()
	}

	weights := hooks{}
	for _, b := range bases {
		folder := filepath.Join("manifests", b.folder)
		err := b.add(out, func(components ...string) ([]object, error) {
			text, err := k.Render(ctx, folder, components, nil)
			if err != nil {
				return nil, err
			}
			return weights.parse(text)
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", folder, err)
		}
	}
	return out, nil
}

// add adds the templates of a base to files. rendered returns its objects with components.
func (b base) add(files map[string]string,
	rendered func(components ...string) ([]object, error)) error {
	objects, err := rendered()
	if err != nil {
		return err
	}
	was, edits := map[string]object{}, map[string][]edit{}
	for _, o := range objects {
		was[o.id] = o
	}
	for _, p := range b.parts {
		changed, err := rendered(p.component)
		if err != nil {
			return err
		}
		if err := p.compare(was, changed, edits, func(o object) error {
			return put(files, o, nil, all(b.when, p.when), p.escape)
		}); err != nil {
			return fmt.Errorf("component %s: %w", p.component, err)
		}
	}

	for _, o := range objects {
		if o.id == configMap {
			more, err := exampleEdits(o.lines)
			if err != nil {
				return err
			}
			edits[o.id] = append(edits[o.id], more...)
		}
		if err := put(files, o, edits[o.id], b.when, part{}.escape); err != nil {
			return err
		}
	}
	return nil
}

// compare adds the edits of a part to edits, by object, and calls added for each object that only
// the part has. was are the objects of the base, by id.
func (p part) compare(was map[string]object, changed []object, edits map[string][]edit,
	added func(object) error) error {
	left := len(was)
	for _, o := range changed {
		old, found := was[o.id]
		if !found {
			if err := added(o); err != nil {
				return err
			}
			continue
		}
		left--
		edits[o.id] = append(edits[o.id], difference(old.lines, o.lines, p.when, p.escape)...)
	}
	if left != 0 {
		return errors.New("it takes an object away")
	}
	return nil
}

// put adds the template of an object to files.
func put(files map[string]string, o object, edits []edit, when string,
	escape func(string) string) error {
	lines, err := merge(o.lines, edits, escape)
	if err != nil {
		return fmt.Errorf("%s: %w", o.id, err)
	}
	path := "templates/" + o.file
	if files[path] != "" {
		return fmt.Errorf("%s: there is a second object of this kind and name", o.id)
	}
	files[path] = strings.Join(conditional(when, lines, nil), "\n") + "\n"
	if strings.Contains(files[path], "localhost/") {
		return fmt.Errorf("%s names an image for which the chart has no value", o.id)
	}
	return nil
}

// escape returns a line of an object as a line of a template.
func (p part) escape(line string) string {
	line = strings.ReplaceAll(line, "{{", `{{ "{{" }}`)
	for text, action := range p.values {
		line = strings.ReplaceAll(line, text, action)
	}
	for image, action := range imageValues {
		if before, found := strings.CutSuffix(line, " "+image); found {
			line = before + " " + action
		}
	}
	return line
}

// all returns the condition that both conditions hold.
func all(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return "and (" + a + ") (" + b + ")"
}

// configMap is the object with veild's configuration.
const configMap = "ConfigMap kube-system/kubeveil"

// exampleEdits returns the edits for the examples in the lines of the ConfigMap, and the edit that
// adds all other keys behind the last example.
func exampleEdits(lines []string) (edits []edit, err error) {
	var more edit
	for _, x := range examples {
		found := 0
		for i, line := range lines {
			text := strings.TrimLeft(line, " ")
			if !strings.HasPrefix(text, x.begin) {
				continue
			}
			found++
			e := edit{from: i, to: i + 1, when: x.when}
			for _, l := range x.lines {
				e.lines = append(e.lines, strings.TrimSuffix(line, text)+l)
			}
			edits = append(edits, e)
			more = edit{from: i + 1, to: i + 1, when: moreKeys, lines: []string{fmt.Sprintf(
				"{{- %s | toYaml | nindent %d }}", moreKeys, len(line)-len(text))}}
		}
		if found != 1 {
			return nil, fmt.Errorf("%s has %d lines that begin with %q", configMap, found, x.begin)
		}
	}
	return append(edits, more), nil
}
