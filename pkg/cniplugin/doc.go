// Package cniplugin installs CNI plugins into the directory in which runtimes find
// them, and removes them.
//
// A plugin is replaced as a whole or not at all, also while it runs. If the replaced file was not
// ours, it is kept beside the plugin and restored when the plugin is removed. A file that another
// program changed since is never removed. Install and Remove may be repeated.
//
// The file RecordName beside the plugins records the name and the SHA-256 sum of each installed
// plugin. It is written before a plugin is replaced and after a plugin is removed, so that a crash
// in between loses no entry.
//
// Install replaces plugins of the same names that others installed. Older releases of these plugins
// may not support the version of the specification that a runtime chooses (CNI 1.1). The new
// plugins support all older versions.
//
// Start reading at Install.
package cniplugin
