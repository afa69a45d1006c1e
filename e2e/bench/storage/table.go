package storage

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
)

// labels returns the titles of the cases, keyed by name.
func labels() map[string]string {
	out := map[string]string{caseNew: "Stage to mounted, new ext4 of 10 GiB",
		caseExisting: "Stage to mounted, existing ext4 of 10 GiB"}
	for _, l := range limits {
		for _, t := range tasks() {
			for _, q := range t.quantities {
				text := q.title + " (" + l.title + ")"
				for _, against := range []string{"", toCrypt} {
					name := l.name + "_" + q.job + against
					out[name], out[name+p99Suffix], out[name+cpuSuffix] = text, text+
						", 99th percentile", text+", CPU"
				}
			}
		}
	}
	return out
}

// Report returns the report with the tables and notes of all parts.
func (s *run) Report() *report.Report {
	banner := "Virtual machine"
	if s.Result.Platform == bench.Emulated {
		banner = "Emulated machine"
	}
	return &report.Report{
		Title: "Kubeveil's volumes beside a plain device and stock cryptsetup",
		Lead: fmt.Sprintf("One machine, kernel %s, %d CPUs; one disk for each limit, with a "+
			"partition for each side.", s.Result.Kernel, s.Result.CPUs),
		Banner: banner, Tables: []report.Table{s.matrix(), published()},
		Notes: s.notes(),
	}
}

// matrix returns a table with a row for each disk and job, and columns for the sides.
func (s *run) matrix() report.Table {
	t := report.Table{
		Title: "Reads and writes", Head: []string{"disk", "job", "plain", "ours", "to plain",
			"cryptsetup", "to cryptsetup", "core-s/GB, ours to plain"},
		Note: "Medians; relations are medians of the ratios of each round.",
	}

	for _, d := range s.disks {
		for _, task := range tasks() {
			for _, q := range task.quantities {
				name := d.name + "_" + q.job
				plain, stock := s.Result.Find(name, 0), s.Result.Find(name+toCrypt, 0)
				if plain == nil || stock == nil {
					continue
				}
				cpu := "–"
				if c := s.Result.Find(name+cpuSuffix, 0); c != nil {
					cpu = fmt.Sprintf("%.2f to %.2f", c.Ours.Median, c.Base.Median)
				}
				t.Rows = append(t.Rows, []string{
					d.title, q.title, plain.Unit.Format(plain.Base.Median),
					plain.Unit.Format(plain.Ours.Median), change(plain.Ratio.Median),
					stock.Unit.Format(stock.Base.Median), change(stock.Ratio.Median), cpu,
				})
			}
		}
	}

	return t
}

// change returns a ratio as a signed percentage: "−10.0 %" for 0.9.
func change(ratio float64) string {
	return strings.Replace(fmt.Sprintf("%+.1f\u00a0%%", (ratio-1)*100), "-", "−", 1)
}

// published returns a table of figures of encrypted volumes from the documents of other projects,
// relative to the same disk in clear.
func published() report.Table {
	return report.Table{
		Title: "Published figures: the cost of encryption against the same disk in clear",
		Head:  []string{"", "IOPS", "bandwidth"},
		Note:  "These figures are from other machines, so only their order of magnitude compares.",
		Rows: [][]string{
			{"Constellation 2.14, GCP, kubestr", "−10 %", "about equal"},
			{"Constellation 2.14, Azure, kubestr", "about equal", "−15 %"},
			{"Constellation 2.14, AWS, kubestr", "–", "−18 % read, −31 % write"},
			{"Ceph Reef 2023, 4 MiB random write", "–", "−45 %; −31 % with submit_from_crypt_cpus"},
			{"Ceph Reef 2023, 4 KiB, many clients", "−10 % read, −17 % write", "–"},
		},
	}
}

func (s *run) notes() []string {
	out := []string{
		fmt.Sprintf("Each of the three sides has a partition on the same disk, so they share the "+
			"disk's limits. The payload of a partition has %d MiB and begins after 4 MiB. fio "+
			"runs on the mapping, without a file system.", s.Room/mib),
		"The disks are files of the host, mostly in its memory; qemu sets the limits. The disk " +
			"without limits was written once before. The comparison is between mappings, not " +
			"between disks.",
		fmt.Sprintf("For the comparison with cryptsetup on the disk without limits, each side is "+
			"measured %d times per round. A check before it showed that the tables of both "+
			"mappings differ only in key and device.", freeTurns),
		fmt.Sprintf("Class %q: cryptsetup has the same cipher (aes-xts-plain64, 512-bit key), "+
			"sectors of 4096 bytes, offset and flags, and PBKDF2 with 1000 iterations, the "+
			"minimum that it allows.", s.Tuning),
		fmt.Sprintf("kubestr's job is the published text with three changes: %v instead of 15 s, "+
			"a quarter of the payload instead of 2 GiB, and the device instead of a file. "+
			"Constellation's job is 4k and 1024k with a queue of 128 and one submitter on one "+
			"processor, for %v instead of 60 s, without its ramp.", s.Sample, s.Sample),
		"CPU is the busy time of all processors of the machine, fio and its start included, from " +
			"/proc/stat, for 10^9 bytes read or written.",
		"Stage to mounted: ours is one call of the driver, as a kubelet makes it, including the " +
			"attachment of the loop device. It is compared with luksFormat, open, mkfs.ext4 and " +
			"mount (new), or with open, fsck and mount (existing), on a loop device that was " +
			"attached before. The files of both are on the same disk without limits.",
		fmt.Sprintf("%d rounds, order drawn with seed %d.", s.Rounds, s.Seed),
	}

	if s.Result.Platform == bench.Emulated {
		out = slices.Insert(out, 0, "AES is emulated here, so bandwidth without a limit measures "+
			"the emulator, and no gate judges it. On real processors the profile `hardware` has "+
			"a gate.")
	}

	return out
}
