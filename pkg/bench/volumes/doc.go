// Package volumes measures claims of two classes on a cluster, one beside the other on one node:
// Kubeveil's class, and a baseline, such as the same disk without encryption.
//
// A new namespace has a claim and a pod for each class. Both pods run at the same time. The sides
// of a quantity are measured directly after one another, in random order (package bench). Each
// measurement reads or writes a file on the volume's file system, past the page cache.
//
// It promises to remove everything that it made, also after a failure. It returns figures without a
// verdict, because it cannot know whether both classes are on the same disk. Start reading at Run.
package volumes
