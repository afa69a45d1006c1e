package sysdump

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/redact"
)

// archive is a .tar.gz whose files all pass through the redactor. Its methods may be called from
// several goroutines.
type archive struct {
	root   string
	redact *redact.Redactor

	mu       sync.Mutex // guards the fields below
	gz       *gzip.Writer
	tar      *tar.Writer
	contents manifest
	broken   error // the first error of writing the file
}

// manifest lists the content of an archive; it is its last file.
type manifest struct {
	Made    time.Time `json:"made"`
	Version string    `json:"veilctl"`
	Server  string    `json:"server"`
	Files   []entry   `json:"files"`
	// Missing lists what could not be read.
	Missing []missing `json:"missing"`
	// LeftOut lists what sysdump never reads.
	LeftOut []string `json:"leftOut"`
}

type entry struct {
	Path string `json:"path"`
	From string `json:"from"`
	// Bytes is the file's size; Redacted is the number of secrets that were removed from it.
	Bytes    int `json:"bytes"`
	Redacted int `json:"redacted"`
}

type missing struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

func newArchive(w io.Writer, root string, r *redact.Redactor, m manifest) *archive {
	gz := gzip.NewWriter(w)
	m.Files, m.Missing = []entry{}, []missing{}
	return &archive{root: root, redact: r, gz: gz, tar: tar.NewWriter(gz), contents: m}
}

// text adds a file; from names its origin.
func (a *archive) text(name, from string, text []byte) { a.add(name, from, text, 0) }

// object adds a YAML file with an object or a list of objects.
func (a *archive) object(name, from string, v any) {
	clean, n := a.redact.Object(v)
	text, err := yaml.Marshal(clean)
	if err != nil {
		a.lacks(name, err)
		return
	}
	a.add(name, from, text, n)
}

// data adds a JSON file with v.
func (a *archive) data(name, from string, v any) {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		a.lacks(name, err)
		return
	}
	a.add(name, from, append(text, '\n'), 0)
}

func (a *archive) add(name, from string, text []byte, redacted int) {
	text, n := a.redact.Text(text)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.write(name, text)
	a.contents.Files = append(a.contents.Files, entry{name, from, len(text), redacted + n})
}

// lacks records in the manifest that the file called name could not be read.
func (a *archive) lacks(name string, err error) {
	why, _ := a.redact.Text([]byte(err.Error()))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.contents.Missing = append(a.contents.Missing, missing{name, string(why)})
}

// write adds a file. The caller holds a.mu.
func (a *archive) write(name string, text []byte) {
	if a.broken != nil {
		return
	}
	h := &tar.Header{Name: path.Join(a.root, name), Mode: 0o600, Size: int64(len(text)),
		ModTime: a.contents.Made, Format: tar.FormatPAX}
	if a.broken = a.tar.WriteHeader(h); a.broken == nil {
		_, a.broken = a.tar.Write(text)
	}
}

// close adds the manifest, closes the archive and returns the manifest.
func (a *archive) close() (manifest, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	slices.SortFunc(a.contents.Files, func(x, y entry) int {
		return strings.Compare(x.Path, y.Path)
	})
	slices.SortFunc(a.contents.Missing,
		func(x, y missing) int { return strings.Compare(x.Path, y.Path) })
	text, err := json.MarshalIndent(a.contents, "", "  ")
	if err == nil {
		a.write("manifest.json", append(text, '\n'))
	}
	if err := errors.Join(err, a.broken, a.tar.Close(), a.gz.Close()); err != nil {
		return manifest{}, fmt.Errorf("write the archive: %w", err)
	}
	return a.contents, nil
}
