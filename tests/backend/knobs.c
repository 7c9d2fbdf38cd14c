/* SPDX-License-Identifier: Apache-2.0 */

/* From the parameters of models and requests to struct knobs. */

#include "knobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_true(const char *text)
{
  return strcmp(text, "true") == 0 || strcmp(text, "1") == 0;
}

/* The place of `text` in a list that ends with NULL, or -1. */
static int index_of(const char *text, const char *const *list)
{
  for (int i = 0; list[i] != NULL; i++) {
    if (strcmp(text, list[i]) == 0)
      return i;
  }
  return -1;
}

/* A key that is no knob is nothing special: requests carry parameters of any name. */
static Error *knobs_set(struct knobs *knobs, const char *key, const char *text)
{
  /* Each list is in the order of its enum. */
  static const char *const modes[] = {"echo", "error", "no_output", "no_memory", NULL};
  static const char *const holds[] = {"none", "start", "response", "between", NULL};
  static const char *const finals[] = {"last", "bare", NULL};
  static const char *const orders[] = {"final_first", "release_first", "release_early", NULL};
  static const char *const codes[] = {"UNKNOWN",        "INTERNAL",    "NOT_FOUND",
                                      "INVALID_ARG",    "UNAVAILABLE", "UNSUPPORTED",
                                      "ALREADY_EXISTS", "CANCELLED",   NULL};
  int choice = 0;
  if (strcmp(key, "mode") == 0)
    knobs->mode = (enum mode)(choice = index_of(text, modes));
  else if (strcmp(key, "hold") == 0)
    knobs->hold = (enum hold)(choice = index_of(text, holds));
  else if (strcmp(key, "final") == 0)
    knobs->final_is_bare = (choice = index_of(text, finals)) == 1;
  else if (strcmp(key, "order") == 0) {
    choice = index_of(text, orders);
    knobs->release_first = choice == 1;
    knobs->release_early = choice == 2;
  } else if (strcmp(key, "error_code") == 0)
    knobs->error_code = (TRITONSERVER_Error_Code)(choice = index_of(text, codes));
  else if (strcmp(key, "error_text") == 0)
    snprintf(knobs->error_text, TEXT_SIZE, "%s", text);
  else if (strcmp(key, "init_error") == 0)
    snprintf(knobs->init_error, TEXT_SIZE, "%s", text);
  else if (strcmp(key, "response_ns") == 0)
    knobs->response_ns = strtoull(text, NULL, 10);
  else if (strcmp(key, "activity") == 0)
    snprintf(knobs->activity, TEXT_SIZE, "%s", text);
  else if (strcmp(key, "count") == 0)
    knobs->count = atoi(text);
  else if (strcmp(key, "error_at") == 0)
    knobs->error_at = atoi(text);
  else if (strcmp(key, "hold_at") == 0)
    knobs->hold_at = atoi(text);
  else if (strcmp(key, "thread") == 0)
    knobs->in_thread = is_true(text);
  else if (strcmp(key, "ignore_cancel") == 0)
    knobs->ignore_cancel = is_true(text);
  else if (strcmp(key, "quiet") == 0)
    knobs->quiet = is_true(text);
  else if (strcmp(key, "report") == 0)
    knobs->report = is_true(text);
  else if (strcmp(key, "state") == 0)
    knobs->state = is_true(text);
  else if (strcmp(key, "host_policy") == 0)
    snprintf(knobs->host_policy, TEXT_SIZE, "%s", text);
  else if (strcmp(key, "init_hold") == 0)
    knobs->init_hold = is_true(text);
  else if (strcmp(key, "finalize_hold") == 0)
    knobs->finalize_hold = is_true(text);

  if (choice >= 0)
    return NULL;
  char message[TEXT_SIZE];
  snprintf(message, sizeof message, "tffitest: %.64s cannot be '%.64s'", key, text);
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, message);
}

/*
 * Copies the parameter `key` out of the serialised configuration, or leaves `text` empty. Triton
 * writes it without white space; quotes and backslashes in a value are beyond this.
 */
static void config_parameter(const char *config, const char *key, char *text)
{
  char pattern[TEXT_SIZE];
  snprintf(pattern, sizeof pattern, "\"%s\":{\"string_value\":\"", key);
  const char *parameters = strstr(config, "\"parameters\":{");
  const char *value = parameters == NULL ? NULL : strstr(parameters, pattern);
  text[0] = '\0';
  if (value == NULL)
    return;
  value += strlen(pattern);
  snprintf(text, TEXT_SIZE, "%.*s", (int)strcspn(value, "\""), value);
}

Error *knobs_of_model(struct knobs *knobs, const char *config)
{
  static const char *const keys[] = {"mode",       "count",      "final",         "error_at",
                                     "error_code", "error_text", "order",         "thread",
                                     "hold",       "hold_at",    "report",        "ignore_cancel",
                                     "init_error", "init_hold",  "finalize_hold", "state",
                                     "quiet",      NULL};
  *knobs = (struct knobs){.error_code = TRITONSERVER_ERROR_INTERNAL,
                          .error_text = "tffitest: an error as asked for",
                          .error_at = -1,
                          .count = 1};
  for (int i = 0; keys[i] != NULL; i++) {
    char text[TEXT_SIZE];
    config_parameter(config, keys[i], text);
    if (text[0] != '\0')
      TRY(knobs_set(knobs, keys[i], text));
  }
  return NULL;
}

/* An input COUNT is there or not; that Triton calls its absence an error is of no interest here. */
static Error *count_from_input(struct knobs *knobs, struct TRITONBACKEND_Request *request)
{
  struct TRITONBACKEND_Input *input = NULL;
  const void *data = NULL;
  uint64_t byte_size = 0;
  int64_t memory_id = 0;
  TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
  Error *absent = TRITONBACKEND_RequestInput(request, "COUNT", &input);
  if (absent != NULL) {
    TRITONSERVER_ErrorDelete(absent);
    return NULL;
  }
  TRY(TRITONBACKEND_InputBuffer(input, 0, &data, &byte_size, &memory, &memory_id));
  if (byte_size >= sizeof(int32_t))
    memcpy(&knobs->count, data, sizeof(int32_t));
  return NULL;
}

Error *knobs_of_request(struct knobs *knobs, struct TRITONBACKEND_Request *request)
{
  uint32_t count = 0;
  TRY(TRITONBACKEND_RequestParameterCount(request, &count));
  for (uint32_t i = 0; i < count; i++) {
    const char *key = NULL;
    const void *value = NULL;
    TRITONSERVER_ParameterType type = TRITONSERVER_PARAMETER_STRING;
    char text[TEXT_SIZE] = "";
    TRY(TRITONBACKEND_RequestParameter(request, i, &key, &type, &value));
    if (type == TRITONSERVER_PARAMETER_STRING)
      snprintf(text, sizeof text, "%s", (const char *)value);
    else if (type == TRITONSERVER_PARAMETER_INT)
      snprintf(text, sizeof text, "%lld", (long long)*(const int64_t *)value);
    else if (type == TRITONSERVER_PARAMETER_BOOL)
      snprintf(text, sizeof text, "%s", *(const bool *)value ? "true" : "false");
    TRY(knobs_set(knobs, key, text));
  }
  return count_from_input(knobs, request);
}
