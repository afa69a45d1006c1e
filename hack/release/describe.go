package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// summary is release.json: what the release is, and the sizes of its programs and images.
type summary struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	// Date is the time of the commit.
	Date string `json:"date"`
	Go   string `json:"go"`
	// Images are the names of the images with tag and digest, as the manifests have them.
	Images []string `json:"images"`
	// Sizes are in bytes, by file.
	Sizes map[string]int64 `json:"sizes"`
}

// describe writes release.json and provenance.json into dir, whose other files are complete. It
// returns an error if a program or an image has grown too much.
func describe(ctx context.Context, o order, dir string, built map[string]description) error {
	about := summary{Version: o.version, Sizes: map[string]int64{}}
	for _, q := range []struct {
		to   *string
		args []string
	}{
		{&about.Commit, []string{"git", "rev-parse", "HEAD"}},
		{&about.Date, []string{"git", "log", "-1", "--format=%cI"}},
		{&about.Go, []string{"go", "env", "GOVERSION"}},
	} {
		out, err := command(ctx, o.tree, q.args[0], q.args[1:]...)
		if err != nil {
			return err
		}
		*q.to = strings.TrimSpace(out)
	}
	for _, image := range slices.Sorted(maps.Keys(built)) {
		about.Images = append(about.Images,
			o.imageName(image)+":"+o.version+"@"+built[image].Digest)
	}

	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			return err
		}
		if filepath.Ext(f.Name()) == ".tar" || info.Mode()&0o111 != 0 && f.Name() != "verify.sh" {
			about.Sizes[f.Name()] = info.Size()
		}
	}

	if err := writeJSON(filepath.Join(dir, "release.json"), about); err != nil {
		return err
	}
	if err := writeProvenance(o, dir, about, built); err != nil {
		return err
	}
	return checkSizes(committedSizes, about.Sizes)
}

// sizes.json has the sizes of the last release that was looked at, by file.
//
//go:embed sizes.json
var committedSizes []byte

// checkSizes returns an error that names each size that is more than 5 % above the committed one,
// or that is not committed.
func checkSizes(committed []byte, sizes map[string]int64) error {
	var limits map[string]int64
	if err := json.Unmarshal(committed, &limits); err != nil {
		return fmt.Errorf("hack/release/sizes.json: %w", err)
	}
	var problems error
	for _, file := range slices.Sorted(maps.Keys(sizes)) {
		size, was := sizes[file], limits[file]
		if was == 0 || size > was+was/20 {
			problems = errors.Join(problems, fmt.Errorf("%s has %d bytes, %d are committed", file,
				size, was))
		}
	}
	if problems != nil {
		text, _ := json.Marshal(sizes)
		return fmt.Errorf("more than 5 %% above hack/release/sizes.json: find out why, or commit "+
			"there %s\n%w", text, problems)
	}
	return nil
}
